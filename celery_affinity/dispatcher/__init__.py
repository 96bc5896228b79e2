"""The work that no event triggers: jobs that become due, silent workers, ends to be told, lists of stock Celery.

A dispatcher runs in a thread of each worker, or alone (`celery affinity dispatcher`), and takes no job.
Read `dispatcher` first.
"""
