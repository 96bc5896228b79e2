"""What runs in Redis, and the only code that calls it: Lua scripts, and a method for each of them.

No Celery here, and no decision of a worker: what the server says is returned, and checked where it enters.
Read `scheduler` first (the arrows; `running` runs their scripts), then `lua/arrows/publish.lua`.
"""
