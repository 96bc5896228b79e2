"""Where a job meets a slot: which job goes first, and which slot it gets. No job ends here but one that has expired.

Read `fill` first.
"""
