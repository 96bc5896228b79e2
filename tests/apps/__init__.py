"""Real programs and plugins that use Celery: each does the same on stock Celery's Redis transport and on this one.

`make test-apps` runs these tests. A scenario is a function that returns plain data, and runs once on each transport.
"""
