"""Workers over HTTP beside Celery's, on the same jobs, while they, the web processes and the server are killed.

``python -m tests.whole.chaos.over_http --seconds 120``. `worker` is a program of the standard library alone, which ends
itself with SIGKILL at chosen moments: before it reads the reply with its claims, while a job runs, between its result
and the reply. `campaign` kills the others. Everything is written to the ledger, outside of Redis, and `judge` reads it.
"""
