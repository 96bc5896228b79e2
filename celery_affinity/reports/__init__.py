"""Reports for people and programs: the state of the fleet, the order of the jobs, the reasons why a job waits.

Modules here send bounded commands that read, and write nothing.
Read `status` first, then `explain`.
"""
