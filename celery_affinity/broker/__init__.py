"""The only code that calls what runs in Redis (`lua`): a method for each arrow.

No module here imports Celery, or decides for a worker. Replies are parsed and checked where they enter.
Read `scheduler` first, then ``arrows/publishing`` (of the arrows, by what they are for); `running` calls the functions.

The ways of a command to the server: on a kept connection, without waiting for the reply, or many at once.

No module here knows what a command means.
Read `kept` first: the client of every publisher.
"""
