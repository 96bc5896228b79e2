"""How fast this transport is, beside stock Celery and dramatiq: ``python -m benchmarks --help``.

Everything is measured in turn (A B A B ...), in the same run and on the same server, and what counts is the ratio:
absolute numbers move from machine to machine and from hour to hour.
"""
