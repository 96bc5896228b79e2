"""A server that refuses writes, because its memory is full."""

from contextlib import contextmanager


@contextmanager
def full_server(redis_client):
    redis_client.config_set("maxmemory", "1")
    try:
        yield
    finally:
        redis_client.config_set("maxmemory", "0")
