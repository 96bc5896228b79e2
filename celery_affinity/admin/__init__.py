"""Actions of users and other programs on jobs: query, list, submit, cancel, move and retry.

The commands and the HTTP API use this package. Read-only reports are in `reports`, the commands to Redis in
`scheduler`. Start with `jobs`.
"""
