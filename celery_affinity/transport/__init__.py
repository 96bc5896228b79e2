"""The kombu side: broker URLs, connections, channels, acks.

What a job needs was said by `client`; when a worker takes it is said by `worker`.
Read `transport` first, then `channel`.
"""
