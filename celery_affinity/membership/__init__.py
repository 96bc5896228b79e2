"""One worker in the fleet: it joins, beats, holds claims, tells their ends, drains and leaves.

Celery is not known here; the worker says what its pool does (`worker`).
Read `membership` first, then `claims`.
"""
