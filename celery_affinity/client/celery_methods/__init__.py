"""Celery's own methods that are wrapped where a call begins, since Celery has no hook there; importing wraps them.

`calls`: a task, its options, its signature, the router. `canvas`: chains, groups, chords, maps. `retries`: a retry that
cannot be published. `apps`: an app's connections, and the function with which it sends messages. `connections`: what
kombu repeats when a connection is lost.
"""
