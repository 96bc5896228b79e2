"""How a command reaches the server: on a connection that is kept, without waiting for the reply, or many at once.

No module here knows what a command means.
Read `kept` first: the client of every publisher.
"""
