"""The lab: a fleet's own record, scheduled again.

Read `trace` first, what a record has; then `scenario`, what is asked of it, and `schedule`, what comes of it. Two
engines make a schedule of a scenario: `judge` (the real library on a server of its own, at a clock of its own) and
`twin` (the rules in plain Python, fast). Here belongs what is computed of a record. What workers write of their claims
belongs to `membership`, and what the commands print to `cli`.
"""
