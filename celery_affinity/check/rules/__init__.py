"""The rules of the checks: pure functions from facts to findings, by what the facts are of."""
