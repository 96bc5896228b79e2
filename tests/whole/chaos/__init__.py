"""Fault injection while thousands of jobs run, and a checker that reads events outside Redis: ``make chaos``.

`storms` combines faults. `faults` hit the `fleet`, the `servers` and the `proxy` between them, and an operator pauses
and limits jobs (`operating`). The processes run `app` and `publisher`, and write their events to the `ledger`. When a
storm is over and the fleet is quiet, `checker` compares the ledger, parsed into a `history`, with the keys that
`remains` finds in Redis.
"""
