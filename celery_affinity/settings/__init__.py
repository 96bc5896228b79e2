"""The ``affinity_*`` settings: their table, how they are read from the app, and their form in Redis. Pure Python."""
