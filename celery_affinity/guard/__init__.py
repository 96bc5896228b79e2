"""A small process that beats for its worker, and says at once when it has died.

`program` imports the standard library alone, so this file stays without imports.
Read `guard` first (the worker's side), then `program` (what runs in the process).
"""
