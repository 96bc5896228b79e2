"""How a command reaches the server: on a connection that is kept, without waiting for the reply, or many at once.

Nothing here knows what a command means.
Read `kept` first: what every publisher uses.
"""
