"""The work that no event triggers: due jobs, silent workers, unreported ends and lists of stock Celery.

A dispatcher runs in a thread of each worker or stand-alone (`celery affinity dispatcher`). It claims no jobs. Read
`dispatcher` first.
"""
