"""What runs in Redis, and the only code that calls it: Lua scripts, and a method for each of them.

No Celery here, and no decision of a worker: a reply is parsed and checked where it enters.
In ``lua``: `arrows` (one script each), `placing` (which job, which slot), `jobs` (the life of a job), `fleet` (workers,
and what dead workers held), `repair` (what other programs spoiled), `base` (clock, settings).
Read `scheduler` first (the arrows; `running` runs their scripts), then ``lua/arrows/publish.lua``.
"""
