"""Exclusion and rate by key. `key_rules`: what a task or a call asks for. `template`: keys filled with arguments.

`spelled`: the text of a key in a job. `key_limits`: the setting ``affinity_limits``.
"""
