"""The names that `make check` refuses."""

from .variable_names import refused_names


def test_refused_names_are_found_outside_comprehensions_and_fields():
    source = """
class Reply:
    found: int
    asked = 1
def count(said, *, jobs):
    for each in jobs:
        its = [each for each in jobs]
    return lambda known: known
"""
    refused = [(4, "asked"), (5, "said"), (6, "each"), (7, "its"), (8, "known"), (8, "known")]
    assert sorted(refused_names(source)) == refused
