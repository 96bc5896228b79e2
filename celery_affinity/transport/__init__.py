"""The kombu side: broker URLs, connections, channels, acks.

`client` says what a job needs, and `worker` decides when it starts.
Read `transport` first, then `channel` (queues, and revokes) and `inbox` (what a worker reads).
"""

from ..errors import TransportError


def __getattr__(name: str) -> object:
    """Say what is wrong when kombu takes this package for a transport: ``celery_affinity:transport``."""
    if name == "can_parse_url":  # what kombu asks a transport first
        raise TransportError(
            "broker_transport must be 'celery_affinity:Transport', with a capital T, got: 'celery_affinity:transport'"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
