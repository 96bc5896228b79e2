"""The way from a call (`apply_async`, `delay`, a canvas) to a job: its queue, its urgency, its message, its publish.

No module here has a connection of its own, or does a worker's work.
Read `stamping` first, then `destination` (which queue counts), `stamp` (what a message says of its job), and
`publishing_channel` (how a message becomes a job on the server).
"""
