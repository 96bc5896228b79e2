"""A URL that kombu does not know, without a transport beside it: Celery makes such a connection for its reports.

`celery report` and `inspect report` mask the password so. Nothing connects by it.
"""

from typing import Any

from kombu.transport import TRANSPORT_ALIASES
from kombu.transport.base import Transport

from ..errors import TransportError
from . import urls

_TEXT = "a URL with this scheme needs the transport of this package: set broker_transport = 'celery_affinity:Transport'"


class Unnamed(Transport):
    """Shows a URL, and raises TransportError where it is to connect."""

    can_parse_url = True
    driver_type = driver_name = "redis"

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        return uri if include_password else urls.masked(uri, mask)

    def driver_version(self) -> str:
        return "N/A"

    def establish_connection(self) -> Any:
        raise TransportError(_TEXT)


def install() -> None:
    """Tell kombu of the schemes."""
    for scheme in (*urls.CLUSTER, *urls.SAME):
        TRANSPORT_ALIASES.setdefault(scheme, f"{__name__}:Unnamed")
