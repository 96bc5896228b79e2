"""Options of tasks and calls: their checks, keys, templates and merging.

Pure functions: no I/O and no clock. Nothing here imports redis, celery or kombu.
"""
