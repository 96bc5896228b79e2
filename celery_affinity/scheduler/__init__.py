"""The arrows, one method each, by what they are for. `Scheduler` has them all.

Each class here is complete: none calls a method of another that it does not inherit.
"""
