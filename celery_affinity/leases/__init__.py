"""One worker in the fleet: its join, heartbeats, claims, releases, drain and leave.

The package knows neither Celery nor kombu: `held_claim` declares the ports that package `worker` implements. Read
`member` first (the life of a worker), then `claims` and `outbox` (the life of a claim).
"""
