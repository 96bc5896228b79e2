"""The ways of a command to the server: on a kept connection, without waiting for the reply, or many at once.

No module here knows what a command means.
Read `kept` first: the client of every publisher.
"""
