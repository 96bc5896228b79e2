"""Workers that are other programs: each joins, gets jobs as JSON, and tells their ends, a request at a time.

To the fleet such a worker is a worker like any other: a row, slots, an inbox, claims with fencing numbers, and the same
arrows. Between two requests nothing of it is kept here but in Redis, so any process may answer the next one. `web` has
the requests; nothing here knows HTTP. Read `incarnation` first, then `claims` and `ending`.
"""
