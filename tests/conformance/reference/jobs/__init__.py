"""The life of one job: it enters, is held by a worker, comes back or ends. Which slot it gets is not known here.

Read `enter` first, then `claims`, `come_back` and `ends`.
"""
