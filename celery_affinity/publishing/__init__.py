"""The path from a call (`apply_async`, `delay`, a canvas) to a job: its queue, its urgency, its message, its publish.

No module here has its own connection, or does a worker's work. `publish_call` is the entry point; `routing` resolves
the queue, `option_resolution` the other options, and `message` creates the job.
"""
