"""The making of a Lua script from parts, which are included, generated, and defined as late as possible.

Nothing here calls the server.
Read `assembling` first; `deferring` and `linking` only make scripts shorter.
"""
