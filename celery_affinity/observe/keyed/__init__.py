"""Keys in use. `facts`: the limit, holders and waiting jobs of a key. `waiting`: why a job with a key waits.

`room`: how many jobs with keys could start. `in_use`: the keys found by a pattern.
"""
