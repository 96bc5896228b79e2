"""HTTP workers and Celery workers run the same jobs while they, the web processes and the server are killed.

``python -m tests.whole.chaos.over_http --seconds 120``. `worker` uses only the standard library, and kills itself with
SIGKILL at random points: before it reads the reply with its claims, while a job runs, between its result and the reply.
`campaign` kills the other processes. All events are written to the ledger outside Redis, and `checker` checks it.
"""
