"""What no event triggers: jobs that are due, silent workers, ends to be told, lists of stock Celery.

It runs in a thread of each worker, or alone (`celery affinity dispatcher`), and takes no job.
Read `dispatcher` first.
"""
