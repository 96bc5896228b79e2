"""What callers hear of their jobs: results of merged runs, ends without a worker, events, parts of chords.

A worker's processes tell the ends of the tasks that they run (`sharing`, for merged calls). The `announcer`, a thread
of each worker and of `celery affinity dispatcher`, tells those of jobs that ended without one. `teller` gives an end to
a caller in both cases: read it first.
"""
