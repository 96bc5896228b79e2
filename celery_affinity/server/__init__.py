"""The Lua scripts that run in Redis, and the only code that calls them: a method for each script.

No module here imports Celery, or decides for a worker. Replies are parsed and checked where they enter.
In ``lua``: `arrows` (one script each), `placing` (which job, which slot), `jobs` (the life of a job), `fleet` (workers,
and what dead workers held), `repair` (what other programs spoiled), `base` (clock, settings).
Read `scheduler` first, then ``arrows/publishing`` (of the arrows, by what they are for) and ``lua/arrows/publish.lua``;
`running` runs the scripts.
"""
