"""Read the body of an untrusted message, with a limit on the size of the decompressed body.

Without a limit, 3 kB of bz2 become several GB. There are two ways to send such a body: with the header ``compression``,
or with a content encoding that names a Python codec which is not a character set (``bz2``, ``zlib``). Processes that
only inspect a message (ingest it from a list, report the end of a job, list jobs, read a revoke) decode only JSON, and
no large bodies. A worker decodes every content type that its app accepts, up to MAX_CHARACTERS bytes.
"""

import base64
import bz2
import codecs
import lzma
import sys
import zlib
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from kombu import compression
from kombu.utils.json import object_hook

from ..schema.untrusted import loads

#: Maximum characters per message, and maximum bytes per decompressed body in a worker. The Redis server copies a
#: message four times between publisher and worker, and is blocked during each copy.
MAX_CHARACTERS = 100_000_000

#: Maximum bytes per body in processes that only inspect a message. As Python objects, JSON can take 25 times as much
#: memory.
MAX_LOOKED_AT = 10_000_000
#: Maximum memory of the decompressor itself, in bytes: `lzma` needs 65 MiB for the largest preset.
_MAX_DECOMPRESSOR_BYTES = 100_000_000
_JSON = "application/json"

#: Accepted content encodings: character sets, by Python's codec names. The time and memory of their decoders are
#: proportional to the size of the body.
_CHARACTER_SETS = frozenset({"utf-8", "utf-8-sig", "ascii", "iso8859-1", "iso8859-15", "cp1252", "utf-16", "utf-32"})


class UnreadableBodyError(ValueError):
    """A body is not decoded, for the reason in the error message."""


def _zstd() -> Any:
    return import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd").ZstdDecompressor()


#: kombu's name of a compression method -> function that creates a decompressor with a size limit. Brotli and methods
#: registered by the app have no size limit.
_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    "application/x-gzip": zlib.decompressobj,
    "application/x-bz2": bz2.BZ2Decompressor,
    "application/x-lzma": lambda: lzma.LZMADecompressor(memlimit=_MAX_DECOMPRESSOR_BYTES),
    "application/zstd": _zstd,
}

_ALIASES = {
    "gzip": "application/x-gzip",
    "zlib": "application/x-gzip",
    "bzip2": "application/x-bz2",
    "bzip": "application/x-bz2",
    "lzma": "application/x-lzma",
    "xz": "application/x-lzma",
    "zstd": "application/zstd",
    "zstandard": "application/zstd",
}


def decompress(body: bytes | str, method: object, max_bytes: int, *, any_method: bool = False) -> bytes:
    """Decompress *body* with *method*, the value of the header ``compression``.

    With *any_method*, methods without a size limit are accepted too. Raises UnreadableBodyError if the result has more
    than *max_bytes* bytes, the body is damaged, or the method is not accepted.
    """
    if not isinstance(method, str):
        raise UnreadableBodyError(f"its compression must be a name, got: {type(method).__name__}")
    make = _DECOMPRESSORS.get(_ALIASES.get(method, method))
    try:
        data = body.encode() if isinstance(body, str) else body
        if make is None:
            if not any_method:
                raise UnreadableBodyError(
                    f"its compression {method[:100]!r} has no limit, so its body is not read here"
                )
            decompressed: bytes = compression.decompress(data, method)
        else:
            decompressor = make()
            decompressed = decompressor.decompress(data, max_bytes + 1)
    except UnreadableBodyError:
        raise
    except Exception as exc:  # each library has its own errors, and an app's decoder can raise any error
        raise UnreadableBodyError(f"its body cannot be decompressed: {type(exc).__name__}: {exc}") from exc
    if len(decompressed) > max_bytes:
        raise _too_large(max_bytes)
    if make is not None and (not decompressor.eof or decompressor.unused_data):
        raise UnreadableBodyError("its compressed body is truncated, or other data follows it")
    return decompressed


def raw_body(message: Mapping[str, Any], max_bytes: int = MAX_LOOKED_AT, *, any_method: bool = False) -> bytes | str:
    """Return the body of *message* (kombu's message format), decoded from base64 and decompressed.

    *any_method*: see `decompress`. Raises UnreadableBodyError if the body has more than *max_bytes* or is damaged.
    """
    body, headers, properties = message.get("body") or "", message.get("headers"), message.get("properties")
    if not isinstance(body, (str, bytes)):
        raise UnreadableBodyError(f"its body must be a text, got: {type(body).__name__}")
    is_base64 = isinstance(properties, Mapping) and properties.get("body_encoding") == "base64"
    if len(body) > (max_bytes * 4 // 3 + 4 if is_base64 else max_bytes):
        raise _too_large(max_bytes)
    if is_base64:
        try:
            body = base64.b64decode(body)
        except ValueError as exc:
            raise UnreadableBodyError(f"its body must be base64: {exc}") from exc
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    method = headers.get("compression") if isinstance(headers, Mapping) else None
    return decompress(body, method, max_bytes, any_method=any_method) if method else body


def read_body(message: object, max_bytes: int = MAX_LOOKED_AT) -> object:
    """Return the decoded body of *message*, or None unless the body is valid JSON and has at most *max_bytes* bytes.

    Other content types are not decoded, even if the app accepts them: an untrusted message is not worth the risk.
    """
    if not isinstance(message, Mapping) or message.get("content-type") != _JSON:
        return None
    try:
        # Without a depth limit: in a workflow, every signature in a body contains the next one.
        return loads(raw_body(message, max_bytes), object_hook=object_hook, max_depth=None)
    except ValueError:
        return None


def check_content_encoding(content_type: object, name: object) -> None:
    """Raise UnreadableBodyError if content encoding *name* is a Python codec that is not a character set."""
    if content_type == _JSON or not isinstance(name, str) or not name:
        return
    try:
        codec = codecs.lookup(name).name
    except (LookupError, ValueError):  # "binary", or a name that kombu rejects later
        return
    if codec.removesuffix("-le").removesuffix("-be") not in _CHARACTER_SETS:
        raise UnreadableBodyError(f"its content encoding must be a character set, got: {name[:100]!r}")


def _too_large(max_bytes: int) -> UnreadableBodyError:
    return UnreadableBodyError(f"its body has more than {max_bytes:,} bytes, and is not read")
