"""Parse broker URLs in every form that Celery has for Redis; kombu leaves the parsing to this transport."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from kombu.utils import symbol_by_name
from kombu.utils.url import maybe_sanitize_url, parse_url, url_to_parts
from redis import CredentialProvider

from ..errors import TransportError
from ..publishing.app_config import without_prefix

SCHEMES = ("redis", "rediss", "socket", "sentinel", "redis-cluster", "rediss-cluster")

#: Aliases. kombu takes the part before a "+" for a transport, so Celery's apps pass it a "-" instead.
SAME = {"valkey": "redis", "valkeys": "rediss", "valkey-cluster": "redis-cluster", "valkeys-cluster": "rediss-cluster"}

#: Schemes of a cluster.
CLUSTER = ("redis-cluster", "rediss-cluster")

#: Schemes with TLS.
TLS = ("rediss", "rediss-cluster")

#: Names of the URL parts that kombu returns, and of the options that users can write after the "?".
_PARTS = {"transport", "hostname", "port", "userid", "password", "virtual_host", "ssl", "credential_provider"}


@dataclass(frozen=True)
class BrokerURL:
    scheme: str
    host: str | None
    port: int | None
    user: str | None
    password: str | None
    virtual_host: str | None
    #: redis-py's options; empty without TLS.
    ssl: Mapping[str, object] = field(default_factory=dict)
    #: Path of a redis-py credential provider class, which supplies user and password.
    credential_provider: str | None = None


def parse_broker_url(url: str) -> BrokerURL:
    """Return the parts of *url*.

    Raises TransportError, which shows no password, for a scheme not in `SCHEMES`, an unknown name after the "?", or an
    invalid credential provider.
    """
    url = without_prefix(url)
    scheme = url_to_parts(url).scheme.replace("+cluster", "-cluster")
    scheme = SAME.get(scheme, scheme)
    if scheme not in SCHEMES:
        schemes = ", ".join(f"{name}://" for name in SCHEMES)
        raise TransportError(f"broker_url must begin with one of {schemes}, got: {mask_url(url)!r}")
    if scheme == "socket":
        provider = _provider(url_to_parts(url).query.get("credential_provider"))
        return BrokerURL(scheme, url, None, None, None, None, credential_provider=provider)  # kombu parses this URL
    parts = parse_url(url)
    ssl_options = parts.get("ssl") or {}
    for name in parts.keys() - _PARTS:
        raise TransportError(f"broker_url takes credential_provider= and ssl_...= after the '?', got: {name}=")
    if scheme in CLUSTER and parts["virtual_host"] not in (None, "0"):
        raise TransportError(
            f"broker_url of a cluster must have no database, or 0, got: {mask_url(url)!r}: fleets that share a cluster "
            "have a namespace each, in broker_transport_options"
        )
    return BrokerURL(
        scheme,
        parts["hostname"],
        parts["port"],
        parts["userid"],
        parts["password"],
        parts["virtual_host"],
        # The server's certificate is verified unless the URL disables it; kombu's default is not to verify.
        {"ssl_cert_reqs": ssl.CERT_REQUIRED, **ssl_options} if scheme in TLS or ssl_options else {},
        _provider(parts.get("credential_provider")),
    )


def _provider(path: str | None) -> str | None:
    """Return *path*, or raise TransportError if it is not a provider's: a login must not be dropped silently."""
    if path is None:
        return None
    try:
        provider = symbol_by_name(path)
    except (ImportError, AttributeError, ValueError) as exc:
        raise _provider_error(path) from exc
    if not callable(provider) or (isinstance(provider, type) and not issubclass(provider, CredentialProvider)):
        raise _provider_error(path)
    return path


def _provider_error(path: str) -> TransportError:
    return TransportError(
        "credential_provider in broker_url must be the path of a subclass of redis.CredentialProvider, as in "
        f"'proj.logins.Provider', got: {path!r}"
    )


def mask_url(url: str, mask: str = "**") -> str:
    """Return *url*, or several URLs separated by semicolons, with each password replaced by *mask*."""
    return ";".join(maybe_sanitize_url(part, mask) for part in url.split(";"))
