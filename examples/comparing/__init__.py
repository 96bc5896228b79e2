"""Shared code of the examples that compare fleets: start processes, record jobs, and write a page with the results."""
