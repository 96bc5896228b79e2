"""The way from a call (`apply_async`, `delay`, a canvas) to a job: its queue, its urgency and its message.

No module here has a connection of its own, or does a worker's work.
Read `stamping` first, then `destination` (which queue counts) and `stamp` (what a message says of its job).
"""
