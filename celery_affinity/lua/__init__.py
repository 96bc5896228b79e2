"""The code that runs in Redis: one library of server functions, and the Python code that assembles it.

`library` joins the Lua files; `generated` makes Lua from the tables of `schema` and `settings`.
Read ``functions/publish.lua`` first, then ``matching/fill.lua``.
"""
