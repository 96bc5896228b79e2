"""The lab: reschedules the trace of a fleet.

Read `trace` first (the contents of a trace), then `scenario` (the input of an engine, and the schedule that results).
Two engines make schedules: `scripts_engine`, the exact engine, runs the real library on a separate server with a fake
clock; `fast_engine` runs the same rules in plain Python. Workers write their claims in `leases`, and `cli` prints.
"""
