"""Reports for people and programs: the state of the fleet, the order of jobs, and why jobs wait.

Modules here send only bounded, read-only commands. Start with `report`, then `status` and `explain`.
"""

#: Name of a report, which is also its command if it has one -> module of this package that declares it.
REPORTS = {
    "status": "fleet_status",
    "pending": "queue_order",
    "scale": "scale",
    "/api/types": "fleet_status",
    "/api/workers": "fleet_status",
    "/api/reserves": "fleet_status",
    "keys list": "key_usage",
    "tenants list": "tenants",
    "/api/tenants": "tenants",
    "settings": "settings",
    "pause": "type_limits",
    "recurring list": "recurring",
    "dead list": "dead_letters",
    "requeues": "requeues",
    "tasks": "tasks",
    "run-times": "run_times",
    "due": "due",
    "memory": "memory",
    "/api/history": "history",
}
