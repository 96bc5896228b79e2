"""Estimate the data that take the memory of a Redis server, from a random sample of its keys.

A scan of a server with millions of keys takes too long, so the report measures a sample. The keys that can be very
large, such as lanes, are few: all of them are measured, and excluded from the sample.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Annotated, Any

from ..scheduler.cohorts import CohortRow
from ..scheduler.reader import Lane
from ..scheduler.scheduler import Scheduler
from ..schema.keys import KEYS, StockLists
from ..schema.values import decode_number, decode_part, decode_text
from .render import Table
from .report import Answer, Param, Source, report

#: Default and maximum number of keys in a sample.
SAMPLE, MAX_SAMPLE = 10_000, 100_000
#: Number of commands per round trip.
_PAGE = 500
#: Maximum number of pages that a scan reads.
_MAX_PAGES = 4 * MAX_SAMPLE // _PAGE
#: Maximum number of lanes, and of stock Celery's lists, that are measured.
_MAX_MEASURED = 1_000

#: Kind of data -> how to free it.
KINDS = {
    "jobs": "start workers, or `cancel`: waiting and running jobs",
    "messages": "start workers, or `cancel`: the arguments of these jobs",
    "dead letters": "`dead drop` or `dead replay`",
    "kept ends": "a lower affinity_keep or affinity_keep_max",
    "fleet data": "lanes, indexes, metrics and settings: little without jobs",
    "results": "a lower result_expires, ignore_result=True, or a backend on another server",
    "stock Celery": "queues without this transport, bindings and remote control: `celery purge -Q QUEUE`",
    "other cohorts": "`memory --cohort NAME`",
    "others": "keys of other programs",
}
#: Kinds that are divided by type.
_BY_TYPE = ("jobs", "messages")

_RESULT = re.compile(r"celery-task(set)?-meta-")
_STOCK = re.compile(r"_kombu\.binding\.|unacked(_index|_mutex)?\Z|.*\.(pidbox|celeryev)\Z|celeryev")
_ENDED = ("done", "failed", "revoked", "expired")


@dataclass(frozen=True)
class KindMemory:
    """The data of one kind, and of one type. *error_bytes*: two standard errors of the estimate.

    - *kind*: one of `KINDS`.
    - *type*: the type of jobs and messages; None for other kinds.
    - *keys*: number of keys, estimated.
    """

    kind: str
    type: str | None
    keys: int
    bytes: int
    error_bytes: int


@dataclass(frozen=True)
class Memory(CohortRow):
    """The memory of a cohort's server; on a cluster, of the node with the cohort's keys. *data*: the largest first.

    - *used_bytes*, *peak_bytes*: memory in use, and its maximum since the server's start.
    - *max_bytes*: the setting maxmemory, or None without a limit.
    - *keys*: number of keys in this database.
    - *sampled*: number of measured keys.
    - *rest_bytes*: memory in use beyond *data*: the server, buffers, other databases, and large keys that the sample
      missed.
    """

    used_bytes: int
    peak_bytes: int
    max_bytes: int | None
    keys: int
    sampled: int
    rest_bytes: int
    data: list[KindMemory] = field(default_factory=list)


@dataclass
class _Sum:
    """The measured keys of one kind and type: *bytes* and *keys* of a sample, *exact* values of single keys."""

    keys: int = 0
    bytes: float = 0.0
    squares: float = 0.0
    exact_keys: int = 0
    exact_bytes: int = 0

    def estimate(self, kind: str, type_: str | None, keys: int, sampled: int) -> KindMemory:
        """Return the estimate from a sample of *sampled* of *keys* keys."""
        scale = keys / sampled if sampled else 0.0
        error = 0.0
        if 1 < sampled < keys:
            mean = self.bytes / sampled
            error = 2 * keys * sqrt(max(0.0, self.squares / sampled - mean**2) / (sampled - 1))
        return KindMemory(
            kind,
            type_,
            round(self.keys * scale) + self.exact_keys,
            round(self.bytes * scale) + self.exact_bytes,
            round(error),
        )


def read_memory(scheduler: Scheduler, stock: StockLists, sample: int = SAMPLE) -> Memory:
    """Return the memory of the server of *scheduler*, from a sample of up to *sample* keys."""
    client: Any = scheduler.client
    info = client.info("memory")
    keys = int(client.dbsize())
    large = _large_keys(scheduler, stock)
    names = _all_keys(client) if keys <= sample else _random_keys(client, sample)
    names = [name for name in names if name not in large]
    sums: defaultdict[tuple[str, str | None], _Sum] = defaultdict(_Sum)
    for name, size in zip(large, _sizes(client, list(large)), strict=True):
        if size is not None:
            total = sums[large[name], None]
            total.exact_keys, total.exact_bytes = total.exact_keys + 1, total.exact_bytes + size
    exact = sum(total.exact_keys for total in sums.values())
    sampled = 0
    for kind, size in zip(_kinds(scheduler, names), _sizes(client, names), strict=True):
        if size is not None:  # otherwise the key was deleted
            total = sums[kind]
            total.keys, total.bytes, total.squares = total.keys + 1, total.bytes + size, total.squares + size**2
            sampled += 1
    data = [total.estimate(*kind, max(sampled, keys - exact), sampled) for kind, total in sums.items()]
    used = _number(info, "used_memory")
    return Memory(
        used_bytes=used,
        peak_bytes=_number(info, "used_memory_peak"),
        max_bytes=_number(info, "maxmemory") or None,
        keys=keys,
        sampled=sampled + exact,
        rest_bytes=max(0, used - sum(row.bytes for row in data)),
        data=sorted(data, key=lambda row: (-row.bytes, row.kind, row.type or "")),
    )


def _number(info: dict[str, Any], name: str) -> int:
    return max(0, decode_number(str(info.get(name, 0))))


def _all_keys(client: Any) -> list[bytes]:
    """Return all keys of a small database, or `_MAX_PAGES` pages of them if it grows during the scan."""
    names, cursor = dict[bytes, None](), 0
    for _ in range(_MAX_PAGES):
        cursor, page = client.scan(cursor, count=_PAGE)
        names |= dict.fromkeys(page)
        if not cursor:
            break
    return list(names)


def _random_keys(client: Any, number: int) -> list[bytes]:
    """Return *number* random keys, perhaps with repetitions. A part of a SCAN on a cluster would cover a few slots."""
    names: list[bytes] = []
    for first in range(0, number, _PAGE):
        with client.pipeline(transaction=False) as pipe:
            for _ in range(min(_PAGE, number - first)):
                pipe.randomkey()
            names += [name for name in pipe.execute() if name is not None]
    return names


def _sizes(client: Any, names: Sequence[bytes]) -> list[int | None]:
    """Return the bytes of keys. None for a key that does not exist."""
    sizes: list[int | None] = []
    for first in range(0, len(names), _PAGE):
        with client.pipeline(transaction=False) as pipe:
            for name in names[first : first + _PAGE]:
                pipe.memory_usage(name)
            sizes += pipe.execute()
    return sizes


def _large_keys(scheduler: Scheduler, stock: StockLists) -> dict[bytes, str]:
    """Return the keys that can be very large, with their kinds: keys that exist once, lanes, stock Celery's lists."""
    keys, reader = scheduler.keys, scheduler.reader
    singles = [keys.base + template for template, _, _ in KEYS.values() if "%s" not in template]
    lanes: Iterable[Lane] = (*reader.lanes(), *reader.kept_lanes())
    names = [*singles, *[reader.lane_key(lane) for lane in lanes][:_MAX_MEASURED]]
    lists = [name for queue in stock.queues for name in stock.lists(keys.of_kombu, queue)][:_MAX_MEASURED]
    return {name.encode(): "fleet data" for name in names} | {name.encode(): "stock Celery" for name in lists}


def _kinds(scheduler: Scheduler, names: Sequence[bytes]) -> list[tuple[str, str | None]]:
    """Return the kind and the type of each key."""
    keys, reader = scheduler.keys, scheduler.reader
    prefixes = keys.key("job", ""), keys.key("message", "")
    texts = [decode_text(name) for name in names]
    ids = [_job_id(text, prefixes) for text in texts]
    distinct = list(dict.fromkeys(job_id for job_id in ids if job_id))
    rows = reader.ask([("hmget", keys.key("job", job_id), ["state", "type"]) for job_id in distinct])
    facts = {job_id: tuple(map(decode_text, row)) for job_id, row in zip(distinct, rows, strict=True)}
    kinds: list[tuple[str, str | None]] = []
    for text, job_id in zip(texts, ids, strict=True):
        if job_id:
            state, type_ = facts[job_id]
            kinds.append(_job_kind(text.startswith(prefixes[1]), state, decode_part(type_)))
        else:
            kinds.append((_other_kind(text, scheduler), None))
    return kinds


def _job_id(name: str, prefixes: Sequence[str]) -> str:
    """Return the id of the job whose hash or message has the key *name*, or ""."""
    return next((name.removeprefix(prefix) for prefix in prefixes if name.startswith(prefix)), "")


def _job_kind(is_message: bool, state: str, type_: str) -> tuple[str, str | None]:
    if state == "dead":
        return "dead letters", None
    if state in _ENDED:
        return "kept ends", None
    return "messages" if is_message else "jobs", type_ or None


def _other_kind(name: str, scheduler: Scheduler) -> str:
    keys = scheduler.keys
    if name.startswith(keys.base) and not name.startswith(f"{keys.base}kombu:"):
        return "fleet data"
    if name.startswith(f"{keys.global_keyprefix}{{{keys.namespace}:") and not name.startswith(keys.base):
        return "other cohorts"
    if _RESULT.search(name):
        return "results"
    return "stock Celery" if _STOCK.match(name.removeprefix(keys.of_kombu)) else "others"


def bytes_text(number: int) -> str:
    """Return a number of bytes as text, such as "1.5 MB"."""
    size = float(number)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


@dataclass(frozen=True)
class _Line(CohortRow):
    """A line of the table."""

    row: KindMemory
    share: float


_LINES = Table[_Line](
    {
        "data": lambda line: line.row.kind,
        "type": lambda line: line.row.type or "",
        "keys": lambda line: f"{line.row.keys:,}",
        "memory": lambda line: bytes_text(line.row.bytes),
        "+-": lambda line: bytes_text(line.row.error_bytes) if line.row.error_bytes else "",
        "share": lambda line: f"{100 * line.share:.0f} %",
        "to free it": lambda line: KINDS[line.row.kind],
    },
    optional={"type": lambda line: bool(line.row.type), "+-": lambda line: line.row.error_bytes > 0},
)


def memory_text(servers: Sequence[Memory]) -> str:
    """Return the memory of each server as text."""
    return "\n\n".join(map(_server_text, servers))


def _server_text(memory: Memory) -> str:
    lines = [
        _Line(row, row.bytes / max(1, memory.used_bytes), cohort=memory.cohort) for row in memory.data if row.bytes
    ]
    limit = "no maxmemory" if memory.max_bytes is None else f"maxmemory {bytes_text(memory.max_bytes)}"
    share = "" if memory.max_bytes is None else f" ({100 * memory.used_bytes / memory.max_bytes:.0f} %)"
    how, missed = "all measured", ""
    if memory.sampled < memory.keys:
        how = f"{memory.sampled:,} measured; the true value is within +- in 95 of 100 reports"
        missed = ", rare large keys"
    return "\n".join(
        [
            f"used {bytes_text(memory.used_bytes)} of {limit}{share}, peak {bytes_text(memory.peak_bytes)}",
            f"keys {memory.keys:,}: {how}",
            _LINES.text(lines) if lines else "no keys",
            f"not in these keys: {bytes_text(memory.rest_bytes)} (the server itself, buffers, other databases{missed})",
        ]
    )


Sample = Annotated[
    int, Param("Number of keys to measure. More keys give a smaller error.", min_value=100, max_value=MAX_SAMPLE)
]


@report("memory", text=memory_text)
def memory(source: Source, sample: Sample = SAMPLE) -> Answer[list[Memory]]:
    """Show what takes Redis's memory: jobs and messages by type, dead letters, results and others, from a sample."""
    stock = source.stock_lists()
    return source.rows(lambda scheduler: [read_memory(scheduler, stock, sample)])
