"""The kombu side: broker URLs, connections, channels, acks.

Package `publishing` determines a job's options, and package `worker` decides when it starts. Read `transport` first,
then `channel` (queues and revocations) and `inbox` (the lists that a worker reads).
"""

from ..errors import TransportError


def __getattr__(name: str) -> object:
    """Explain the error when kombu uses this package as a transport: ``celery_affinity:transport``."""
    if name == "can_parse_url":  # the attribute that kombu reads first
        raise TransportError(
            "broker_transport must be 'celery_affinity:Transport', with a capital T, got: 'celery_affinity:transport'"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
