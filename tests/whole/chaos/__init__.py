"""Faults while thousands of jobs run, and a judge that reads what happened outside of Redis: ``make chaos``.

`storms` says which faults come together; `faults` strike the `fleet`, the `servers` and the `proxy` between them, and
an operator pauses and limits jobs (`operating`); `app` and `publisher` are run. Every process writes its events to the
`ledger`. When a storm is over and all is quiet, `judge` compares the ledger, read into a `book`, with the keys that
`remains` finds in Redis.
"""
