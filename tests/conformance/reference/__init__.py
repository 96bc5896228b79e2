"""The specification: every arrow of the scheduler in plain Python, step by step what the Lua scripts do.

`tests/conformance` compares it with the scripts; it never runs in production. Functions have the names of their twins.
Read `reference` first: the arrows in the order in which a job takes them.
"""
