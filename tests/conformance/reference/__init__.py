"""The reference model: every server function in plain Python, with the same steps as the Lua scripts.

`tests/conformance` compares it with the scripts; it never runs in production. Functions have the names of their Lua
counterparts. Begin with `reference`: it lists the functions in the order in which a job passes them.
"""
