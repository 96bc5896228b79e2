"""Every process limits the size to which a message body expands during decoding."""

import base64
import bz2
import codecs
import contextlib
import io
import json
import lzma
import tracemalloc
import zlib
from types import SimpleNamespace

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st
from kombu.compression import compress
from kombu.transport.virtual import Channel

from celery_affinity.dispatcher import ingest
from celery_affinity.publishing import message_body
from celery_affinity.publishing.message import read_revoke
from celery_affinity.publishing.message_body import UnreadableBodyError
from celery_affinity.results.reporter import ResultReporter
from celery_affinity.transport import inbox

from ..support.from_outside import MESSAGES, as_kombu_reads
from ..support.messages import wire

#: Size of a decompressed bomb in bytes. A real attack expands 3 kB to several GB.
GROWN = 150_000_000

#: Maximum memory per read, in bytes. Without limits, each read would allocate GROWN bytes.
MAX_PEAK_BYTES = 60_000_000

KINDS = ["gzip", "bzip2", "lzma"]


def grown_by(method):
    """Return GROWN compressed zero bytes, without ever holding all zeros in memory."""
    makers = {"gzip": zlib.compressobj, "bzip2": bz2.BZ2Compressor, "lzma": lzma.LZMACompressor}
    maker, out = makers[method](), io.BytesIO()
    for _ in range(GROWN // 1_000_000):
        out.write(maker.compress(bytes(1_000_000)))
    out.write(maker.flush())
    return out.getvalue()


@pytest.fixture(scope="module")
def bombs():
    return {method: grown_by(method) for method in KINDS}


@pytest.fixture(scope="module")
def app():
    with Celery("reader", set_as_current=False) as app:
        app.conf.broker_transport = "celery_affinity:Transport"
        app.conf.accept_content = ["json", "application/data"]
        app.conf.result_backend = "cache+memory://"

        @app.task(name="known", shared=False)
        def known(*args): ...

        yield app


def message(body, *, task="known", compression=None, content_type="application/json", encoding="utf-8"):
    """Return a message with a body of bytes. With *task* None, it follows protocol 1, without a task header."""
    found = json.loads(wire("id"))
    found |= {
        "body": base64.b64encode(body).decode(),
        "content-type": content_type,
        "content-encoding": encoding,
        "headers": {} if task is None else {"task": task, "id": "id"},
    }
    if compression:
        found["headers"]["compression"] = compression
    return found


def peak_of(read):
    """Return the peak memory of *read*, in bytes."""
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def ways_to_read(app, whole):
    """Yield the name of each message reader of the package, and a function that passes *whole* to the reader."""
    raw = json.dumps(whole).encode()
    channel = SimpleNamespace(decode_body=Channel.decode_body.__get__(Channel), no_ack_consumers=None)

    def in_a_worker():
        try:
            found = inbox.CheckedMessage(json.loads(raw), channel=channel)
            found.accept = {"application/json", "application/data"}
            found.decode()
        except Exception:
            pass

    yield "ingest", lambda: ingest.Ingest(app)._as_job("pdf", raw)
    yield "a revoke", lambda: read_revoke("celery.pidbox", whole)
    yield "keys", lambda: message_body.read_body(whole)
    yield "callers", lambda: ResultReporter(app, "host", lambda: None).request_of("known", "id", raw)
    yield "a worker", in_a_worker


def test_readers_never_expand_a_small_body_beyond_the_limit(app, bombs, monkeypatch):
    monkeypatch.setattr(message_body, "MAX_CHARACTERS", 1_000_000)
    monkeypatch.setattr(inbox, "MAX_CHARACTERS", 1_000_000)
    hostile = {
        "bz2 as a content encoding": message(
            bombs["bzip2"], task=None, content_type="application/data", encoding="bz2"
        ),
        "zlib as a content encoding": message(
            bombs["gzip"], task=None, content_type="application/data", encoding="zlib"
        ),
        "zlib of a known task": message(bombs["gzip"], content_type="application/data", encoding="zip"),
        **{f"{method} of a known task": message(bombs[method], compression=method) for method in KINDS},
        **{f"{method} without a task": message(bombs[method], task=None, compression=method) for method in KINDS},
    }
    wrong = {
        (name, reader): peak
        for name, whole in hostile.items()
        for reader, read in ways_to_read(app, whole)
        if (peak := peak_of(read)) > MAX_PEAK_BYTES
    }
    assert not wrong


def test_only_body_above_the_limit_is_refused():
    body = json.dumps(["x" * 994]).encode()
    assert len(body) == 998
    for method in (None, *KINDS):
        whole = message(compress(body, method)[0] if method else body, compression=method)
        assert message_body.raw_body(whole, 998) == body
        with pytest.raises(UnreadableBodyError, match="more than"):
            message_body.raw_body(whole, 997)
        assert message_body.read_body(whole) == ["x" * 994]
        assert message_body.read_body(whole, 997) is None


def test_truncated_or_unsupported_compressed_body_is_refused():
    good = compress(b"text", "bzip2")[0]
    cases = [(good[:-1], "bzip2"), (good + good, "bzip2"), (b"text", "gzip"), (good, "gzip"), (good, ["bzip2"])]
    cases += [(good, "no-such"), (good, "brotli"), (b"", "lzma"), (b"", "zstd")]
    for body, method in cases:
        with pytest.raises(UnreadableBodyError):
            message_body.decompress(body, method, 100)


def test_lzma_body_that_needs_much_memory_is_refused():
    large = lzma.compress(b"text", lzma.FORMAT_XZ, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 128 << 20}])
    with pytest.raises(UnreadableBodyError, match="LZMAError"):
        message_body.decompress(large, "xz", 1000)
    assert message_body.decompress(lzma.compress(b"text", preset=9), "xz", 1000) == b"text"


def test_zstd_is_read_up_to_the_limit():
    pytest.importorskip("compression.zstd" if message_body.sys.version_info >= (3, 14) else "backports.zstd")
    body, _ = compress(bytes(100_000), "zstd")
    assert message_body.decompress(body, "zstd", 100_000) == bytes(100_000)
    with pytest.raises(UnreadableBodyError, match="more than"):
        message_body.decompress(body, "zstd", 99_999)


def test_content_encoding_must_be_a_character_set():
    for name in ("utf-8", "UTF8", "us-ascii", "latin1", "utf-16-le", "binary", "ascii-8bit", "", None, "no-such"):
        message_body.check_content_encoding("application/data", name)
    message_body.check_content_encoding("application/json", "bz2")  # kombu ignores the content encoding of JSON
    for name in ("bz2", "zlib", "ZIP", "hex", "base64", "uu", "quopri", "punycode", "idna", "unicode_escape"):
        codecs.lookup(name)
        with pytest.raises(UnreadableBodyError, match="character set"):
            message_body.check_content_encoding("application/data", name)


@given(whole=MESSAGES.map(as_kombu_reads))
def test_every_body_is_read_or_refused(whole):
    if not isinstance(whole, dict):
        return
    with contextlib.suppress(UnreadableBodyError):
        assert isinstance(message_body.raw_body(whole, 1000), (bytes, str))
    message_body.read_body(whole)


@given(body=st.binary(), method=st.sampled_from([*KINDS, "brotli", "no-such", "zstd"]))
def test_every_compressed_body_is_read_or_refused(body, method):
    with contextlib.suppress(UnreadableBodyError):
        assert len(message_body.decompress(body, method, 1000, any_method=True)) <= 1000
