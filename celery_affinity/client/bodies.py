"""The body of a message that somebody else wrote: bytes that grow when they are read grow up to a limit.

3 kB of bz2 become several GB, as a body that its headers call compressed, and as one whose content encoding names a
codec of Python that is no character set. The processes that only look at a message (they take it over from a list,
report an end, list jobs, read a revoke) read JSON alone, and no large bodies. A worker reads what a task may have.
"""

import base64
import bz2
import codecs
import lzma
import sys
import zlib
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Protocol

from kombu import compression
from kombu.utils.json import object_hook

from ..rules.untrusted import loads

#: Maximum number of characters of a message, and of bytes of a body that a task gets: a server moves a message four
#: times on the way from publisher to worker, and does nothing else meanwhile.
MOST_CHARACTERS = 100_000_000

#: Maximum number of bytes of a body for processes that only look at a message. JSON of this size may take 25 times as
#: much memory as Python objects.
MOST_LOOKED_AT = 10_000_000

#: Bytes of memory that a decompressor may take for itself: `lzma` with its largest preset takes 65 MiB.
_MOST_OF_A_DECOMPRESSOR = 100_000_000

_JSON = "application/json"

#: Content encodings that may decode a body: character sets, under the names that Python has for them, whose decoders
#: take time and memory in proportion to the body.
_CHARACTER_SETS = frozenset({"utf-8", "utf-8-sig", "ascii", "iso8859-1", "iso8859-15", "cp1252", "utf-16", "utf-32"})


class UnreadableBodyError(ValueError):
    """A body is not read: the text says why."""


class _Decompressor(Protocol):
    """A decompressor of the standard library."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: Any, max_length: int, /) -> bytes: ...


def _zstd() -> _Decompressor:
    of_python = sys.version_info >= (3, 14)
    made: _Decompressor = import_module("compression.zstd" if of_python else "backports.zstd").ZstdDecompressor()
    return made


#: kombu's name of a compression -> a function that makes a decompressor. Others cannot be stopped at a limit: brotli,
#: and those that an app has registered.
_DECOMPRESSORS: dict[str, Callable[[], _Decompressor]] = {
    "application/x-gzip": zlib.decompressobj,
    "application/x-bz2": bz2.BZ2Decompressor,
    "application/x-lzma": lambda: lzma.LZMADecompressor(memlimit=_MOST_OF_A_DECOMPRESSOR),
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


def decompressed(body: bytes | str, method: object, most: int, *, any_method: bool = False) -> bytes:
    """Return *body*, which is compressed with *method* (the header ``compression``).

    *any_method*: whether a method that has no limit is used as well. Raises UnreadableBodyError for more than *most*
    bytes, and for a body or a method that is not readable.
    """
    data = body.encode() if isinstance(body, str) else body
    if not isinstance(method, str):
        raise UnreadableBodyError(f"its compression must be a name, got: {type(method).__name__}")
    make = _DECOMPRESSORS.get(_ALIASES.get(method, method))
    try:
        if make is None:
            if not any_method:
                raise UnreadableBodyError(
                    f"its compression {method[:100]!r} has no limit, so its body is not read here"
                )
            found: bytes = compression.decompress(data, method)
        else:
            decompressor = make()
            found = decompressor.decompress(data, most + 1)
    except UnreadableBodyError:
        raise
    except Exception as exc:  # each library has errors of its own, and an app's decoder may raise any
        raise UnreadableBodyError(f"its body cannot be decompressed: {type(exc).__name__}: {exc}") from exc
    if len(found) > most:
        raise _too_large(most)
    if make is not None and (not decompressor.eof or decompressor.unused_data):
        raise UnreadableBodyError("its body is not one whole compressed text")
    return found


def raw_body(message: Mapping[str, Any], most: int = MOST_LOOKED_AT, *, any_method: bool = False) -> bytes | str:
    """Return the body of *message*, as kombu's JSON has it, without base64 and without compression.

    Raises UnreadableBodyError for a body of more than *most* bytes, and for one that is not readable.
    """
    body, headers, properties = message.get("body") or "", message.get("headers"), message.get("properties")
    if not isinstance(body, (str, bytes)):
        raise UnreadableBodyError(f"its body must be a text, got: {type(body).__name__}")
    is_base64 = isinstance(properties, Mapping) and properties.get("body_encoding") == "base64"
    if len(body) > (most * 4 // 3 + 4 if is_base64 else most):
        raise _too_large(most)
    if is_base64:
        try:
            body = base64.b64decode(body)
        except ValueError as exc:
            raise UnreadableBodyError(f"its body must be base64: {exc}") from exc
        if len(body) > most:
            raise _too_large(most)
    method = headers.get("compression") if isinstance(headers, Mapping) else None
    return decompressed(body, method, most, any_method=any_method) if method else body


def decoded(message: object, most: int = MOST_LOOKED_AT) -> object:
    """Return the decoded body of *message*; None if it is not JSON of at most *most* bytes.

    No other content is decoded, whatever the app accepts: a broadcast or a foreign message is not worth the risk.
    """
    if not isinstance(message, Mapping) or message.get("content-type") != _JSON:
        return None
    try:
        # Workflows may be nested deeper than values: every signature in a body has another one inside.
        return loads(raw_body(message, most), object_hook=object_hook, most_nested=None)
    except ValueError:
        return None


def check_content_encoding(content_type: object, name: object) -> None:
    """Raise UnreadableBodyError for a content encoding that names a codec of Python other than a character set."""
    if content_type == _JSON or not isinstance(name, str) or not name:
        return
    try:
        codec = codecs.lookup(name).name
    except (LookupError, ValueError):  # "binary", or a name that kombu refuses
        return
    if codec.removesuffix("-le").removesuffix("-be") not in _CHARACTER_SETS:
        raise UnreadableBodyError(f"its content encoding must be a character set, got: {name[:100]!r}")


def _too_large(most: int) -> UnreadableBodyError:
    return UnreadableBodyError(f"its body has more than {most:,} bytes, and is not read")
