"""Gather the facts for the checks from the server alone."""

import time
from contextlib import suppress
from typing import Any

from redis.exceptions import ResponseError

from ..clock import SECOND_US
from ..rules.clock_step import SHOWN_FOR_S, ClockStep
from ..rules.rows import text_of
from ..server.reader import Reader
from .facts import Server, Stepped


def server_of(reader: Reader, client: Any) -> Server:
    """Return the facts of the server behind *reader* and *client*."""
    before_s = time.time()
    server_s = reader.now_us() / SECOND_US
    after_s = time.time()
    schema, step = reader.ask([("get", reader.key("schema")), ("hget", reader.key("clock"), "stepped")])
    known: dict[str, Any] = {
        "schema": text_of(schema).partition(" ")[0] if schema is not None else None,
        "clock_here_s": outside(server_s, before_s, after_s) * -1,
        "stepped": _stepped(step, server_s),
    }
    try:
        info = client.info("everything")
    except ResponseError as exc:
        return Server(refused=str(exc), **known)
    kind, version = _kind(info)
    return Server(
        kind=kind,
        version=version,
        cluster=bool(info.get("cluster_enabled")),
        replicas=info.get("connected_slaves"),
        replica=info.get("role") == "slave",
        policy=str(info.get("maxmemory_policy", "")),
        used=int(info.get("used_memory", 0)),
        maxmemory=int(info.get("maxmemory", 0)),
        of_machine=int(info.get("total_system_memory", 0)),
        aof=bool(info.get("aof_enabled")),
        save=_save(client),
        failing=_failing(info),
        clients=int(info.get("connected_clients", 0)),
        max_clients=int(info.get("maxclients", 0)),
        **known,
    )


def outside(moment: float, first: float, last: float) -> float:
    """Return the distance of *moment* from the span of *first* to *last*: below 0 before the span, 0 within."""
    return max(0.0, moment - last) + min(0.0, moment - first)


def _stepped(field: bytes | None, server_s: float) -> Stepped | None:
    """Return the last step of the server's clock, unless it is long ago. A later step may have put it ahead of now."""
    step = ClockStep.parse(text_of(field))
    if step is None:
        return None
    ago_s = abs(server_s - step.at_us / SECOND_US)
    return Stepped(step.size_us / SECOND_US, ago_s) if ago_s < SHOWN_FOR_S else None


def _kind(info: dict[str, Any]) -> tuple[str, tuple[int, ...]]:
    for kind in ("valkey", "dragonfly"):
        if f"{kind}_version" in info:
            return kind, _version(str(info[f"{kind}_version"]))
    return str(info.get("server_name") or "redis"), _version(str(info.get("redis_version", "0")))


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("-")[0].lstrip("v").split(".") if part.isdigit())


def _save(client: Any) -> str | None:
    """Return the server's setting for snapshots; None if this user has no right to CONFIG, or the server no CONFIG."""
    with suppress(ResponseError):
        return str(client.config_get("save").get("save", ""))
    return None


def _failing(info: dict[str, Any]) -> str | None:
    if info.get("aof_last_write_status") == "err":
        return "append-only file"
    return "snapshot" if info.get("rdb_last_bgsave_status") == "err" else None
