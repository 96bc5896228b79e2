"""From a call (`apply_async`, `delay`, a canvas) to a job: where it goes, how urgent it is, what it is written as.

No connection of its own, and nothing that a worker does.
Read `stamping` first, then `destination` (which queue counts) and `stamp` (what a message says of its job).
"""
