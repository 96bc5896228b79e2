"""A small process that sends heartbeats for its worker, and reports the worker's death at once.

`program` imports the standard library alone, so this file stays without imports.
Read `guard` first (the worker's side, which starts the process), then `program` (which runs in it and notices a death).
"""
