"""A small process that beats for its worker, and says at once when it has died.

`program` imports the standard library alone, so this file stays without imports.
Read `guard` first (the worker's side, which starts the process), then `program` (which runs in it and notices a death).
"""
