"""Reports for people and programs: the state of the fleet, the order of jobs, and why jobs wait.

Modules here send only bounded, read-only commands. Start with `status`, then `explain`.
"""

#: Name of a report, which is also its command if it has one -> module of this package that declares it.
REPORTS = {
    "keys list": "key_usage",
    "tenants list": "tenants",
    "/api/tenants": "tenants",
    "settings": "settings",
    "pauses": "type_limits",
    "recurring list": "recurring",
    "dead list": "dead_letters",
}
