"""Report job results to callers: merged runs, jobs that ended without a worker, events and chord parts.

Pool processes report the merged runs that they execute (`merged`). Threads in workers and in `celery affinity
dispatcher` report jobs that ended without a worker (`unrun_jobs`). Both use `reporter`: read it first.
"""
