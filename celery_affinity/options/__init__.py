"""The rules that must hold, in plain Python: about a score, a slot, a name, a setting.

No I/O and no clock: time is an argument, and nothing here imports redis, celery or kombu.
Read `score` first (which job goes first), then `slot` (which slot it gets), then `keyed` (which jobs wait for a key);
`protocol` has the numbers.
"""
