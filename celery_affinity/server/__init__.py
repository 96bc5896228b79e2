"""The only code that calls what runs in Redis (`lua`): a method for each arrow.

No module here imports Celery, or decides for a worker. Replies are parsed and checked where they enter.
Read `scheduler` first, then ``arrows/publishing`` (of the arrows, by what they are for); `running` calls the functions.
"""
