"""Broker URLs in every form that Celery has for Redis: kombu leaves the parsing to this transport."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from kombu.utils.url import as_url, parse_url, url_to_parts

from ..errors import TransportError

SCHEMES = ("redis", "rediss", "socket", "sentinel")


@dataclass(frozen=True)
class BrokerURL:
    """The parts of a broker URL. *ssl*: redis-py's options, empty without TLS."""

    scheme: str
    host: str | None
    port: int | None
    user: str | None
    password: str | None
    virtual_host: str | None
    ssl: Mapping[str, object] = field(default_factory=dict)


def parse(url: str) -> BrokerURL:
    """Return the parts of *url*. Raises TransportError, which shows no password, unless its scheme is in `SCHEMES`."""
    scheme = url_to_parts(url).scheme
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise TransportError(f"broker_url must begin with one of {known}, got: {masked(url)!r}")
    if scheme == "socket":
        return BrokerURL(scheme, url, None, None, None, None)  # kombu's channel parses such a URL itself
    parts = parse_url(url)
    return BrokerURL(
        scheme,
        parts["hostname"],
        parts["port"],
        parts["userid"],
        parts["password"],
        parts["virtual_host"],
        # The server's certificate is verified unless the URL says otherwise; kombu by itself would not.
        {"ssl_cert_reqs": ssl.CERT_REQUIRED, **(parts.get("ssl") or {})} if scheme == "rediss" else {},
    )


def masked(url: str, mask: str = "**") -> str:
    """Return *url*, or several that semicolons separate, with *mask* for each password."""
    return ";".join(_masked(part, mask) if "://" in part else part for part in url.split(";"))


def _masked(url: str, mask: str) -> str:
    parts = url_to_parts(url)
    shown: str = as_url(
        parts.scheme, parts.hostname, parts.port, parts.username, parts.password, parts.path, sanitize=True, mask=mask
    )
    return shown
