"""Faults while thousands of jobs run, and a judge that reads what happened outside of Redis: ``make chaos``.

`storms` says which faults come together, `faults` does them to the `fleet`, the `servers` and the `proxy` between them;
`app` and `publisher` are what is run. Every process writes what it sees to the `ledger`. When a storm is over and all
is quiet, `judge` compares the ledger, read into a `book`, with what `remains` in Redis.
"""
