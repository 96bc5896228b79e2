"""What runs in Redis: one library of functions, a function for each arrow.

Rooms: `arrows` (one file each), `placing` (which job, which slot), `jobs` (the life of a job), `keyed`, `merging`,
`recurring` and `types` (rules), `fleet` (workers, and what dead workers held), `repair` (what other programs spoiled),
`base` (the state of a call, settings). `library` joins the files; `generated` makes those of tables in `rules`.
Read ``functions/publish.lua`` first, then ``matching/fill.lua``.
"""
