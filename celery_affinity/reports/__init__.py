"""Reports for people and programs: the state of the fleet, the order of jobs, and why jobs wait.

Modules here send only bounded, read-only commands. Start with `status`, then `explain`.
"""
