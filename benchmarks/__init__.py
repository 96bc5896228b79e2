"""Compare the speed of this transport with stock Celery and dramatiq: ``python -m benchmarks --help``.

A benchmark measures its subjects in turn (A B A B ...), in the same run and on the same server, and reports ratios:
absolute numbers depend on the machine and on its other load.
"""
