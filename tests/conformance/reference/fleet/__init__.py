"""Who is alive: the workers, what a dead one held, and jobs that a worker holds beyond its slots.

Read `workers` first.
"""
