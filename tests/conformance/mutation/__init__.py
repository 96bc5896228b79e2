"""Mutants of the Lua library: whether the tests notice a change of it. `make mutants`.

`operators` makes the changes, `judge` has tests look for one, `judges.toml` says which tests, `survivors.toml` has the
accepted mutants that no test can notice, and `__main__` is the program.
"""
