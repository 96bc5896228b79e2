"""What people and programs ask: the state of the fleet, the order of the jobs, why one of them waits.

Bounded commands that read; nothing here writes.
Read `status` first, then `explain`.
"""
