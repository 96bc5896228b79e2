"""Mutation tests of the Lua library, `make mutants`: do the tests notice a change?

`operators` makes the changes, `judge` runs the tests, `judges.toml` lists which tests, `survivors.toml` has the
accepted equivalent mutants, and `__main__` is the program.
"""
