"""Connections to the server, and ways to send commands: persistent, without waiting for the reply, or pipelined.

No module here knows the meaning of a command. `client.PersistentClient` is the client of every publisher;
`failover` describes outages.
"""
