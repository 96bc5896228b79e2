"""How a Lua script is made of its parts: included, generated, and defined as late as possible.

Nothing here calls the server.
Read `assembling` first; `deferring` and `linking` only make scripts shorter.
"""
