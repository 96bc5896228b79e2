"""Workers that are other programs: each joins, receives jobs as JSON, and reports their ends in single requests.

To the fleet such a worker is a normal worker: a hash, slots, an inbox, claims with fencing tokens, and the same server
functions. Between two requests its state exists only in Redis, so any process can handle the next request. `web`
defines the requests; this package does not depend on HTTP. Read `worker` first, then `handout` and `job_end`.
"""
