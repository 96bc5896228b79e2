"""A small watchdog process, the guard, sends heartbeats for its worker and reports the worker's death immediately.

The guard process only imports the standard library and modules of this package, so this file has no imports. Read
`guard` first (the worker's side, which starts the process), then `guard_process` (which runs in it and notices a
death).
"""
