"""The app of workers and publishers: the tasks of `app`, and merging tasks.

The only argument of a call is its token: its merge key, a unique number, the length of its run, and the report to a
caller at which the process dies. A result contains the run and the tokens of its calls.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from celery.backends.redis import RedisBackend

from celery_affinity import Affinity, Exclusive, Merge
from celery_affinity.results import merged

from . import app as app_module
from .app import _backend, _noted, app, ledger

__all__ = ["app"]

#: Seconds until an unknown result is reported as lost: few, since the fleet must become quiet soon after a storm.
LOST_AFTER_S = 8.0


class Token(NamedTuple):
    key: str
    number: str
    seconds: float = 0.0
    #: Number of the report at which the process dies once, after the caller's result is stored and its chord counted.
    #: If negative, the process dies between both. If 0, it does not die.
    dies_at: int = 0

    def __str__(self) -> str:
        return f"{self.key}:{self.number}:{self.seconds}:{self.dies_at}"

    @classmethod
    def of(cls, text: str) -> "Token":
        key, number, seconds, dies_at = text.split(":")
        return cls(key, number, float(seconds), int(dies_at))


def key_of(args, _kwargs):
    return Token.of(args[0][0]).key


def _union(older, newer):
    return older.replace(tokens=[*older.kwargs["tokens"], *newer.kwargs["tokens"]])


# -- a process that dies between two reports to callers

_lives_for = 0


def _die(step: int) -> None:
    """Count a *step*: 1 after a report, or -1 when a result is stored. Die at the last step."""
    global _lives_for
    if _lives_for * step > 0:
        _lives_for -= step
        if not _lives_for:
            ledger.note("kill", "pool process", target=os.getpid())
            os.kill(os.getpid(), signal.SIGKILL)


def _arm(tokens: list[Token]) -> None:
    """Schedule the death of this prefork pool process, if a token requires it and no process has died of the token."""
    global _lives_for
    _lives_for = 0
    for token in tokens:
        if token.dies_at and os.getpid() != app_module._worker_pid:
            with suppress(FileExistsError):
                os.close(os.open(ledger.path.with_name(f"died-{token.number}"), os.O_CREAT | os.O_EXCL))
                _lives_for = token.dies_at
                return


_mark_as_done, _store_result = RedisBackend.mark_as_done, RedisBackend.store_result


def _marks_as_done(self, *args, **kwargs):
    _mark_as_done(self, *args, **kwargs)
    _die(1)


def _stores_result(self, *args, **kwargs):
    result = _store_result(self, *args, **kwargs)
    _die(-1)
    return result


if "LEDGER" in os.environ:  # a process of a storm, not the checker
    RedisBackend.mark_as_done, RedisBackend.store_result = _marks_as_done, _stores_result
    merged.LOST_AFTER_S = LOST_AFTER_S

# -- tasks


@contextmanager
def _noted_run(request, own: list[str]) -> Iterator[dict]:
    """Note a run of calls. Yield its result. *own*: the tokens in the arguments of the run."""
    calls = request.affinity.calls
    texts = [text for call in calls for text in (call.kwargs.get("tokens") or call.args[0])] or own
    tokens = [Token.of(text) for text in texts]
    with _noted(request, "merged", task=request.id, calls=",".join(texts), given=",".join(own)) as run:
        time.sleep(max(token.seconds for token in tokens))
        _arm(tokens)
        yield {"run": run, "tokens": texts}


def _task(name: str, merge: Merge, **options):
    affinity = Affinity(merge=merge, exclusive=options.pop("exclusive", None))
    return app.task(name=f"{__name__}.merged_{name}", bind=True, affinity=affinity, **options)


_LATE = {"acks_late": True, "reject_on_worker_lost": True}
_ONE = Exclusive(lambda args, kwargs: f"merged {key_of(args, kwargs)}")


@_task("first", Merge(key_of, keep="first"), **_LATE)
def first(self, tokens):
    with _noted_run(self.request, tokens) as result:
        return result


@_task("last", Merge(key_of, keep="last"), backend=_backend, exclusive=_ONE)
def last(self, tokens):
    with _noted_run(self.request, tokens) as result:
        return result


@_task("fold", Merge(key_of, fold=_union), exclusive=_ONE, **_LATE)
def fold(self, tokens):
    with _noted_run(self.request, tokens) as result:
        return result


@_task("all", Merge(key_of, keep="all", most=20), exclusive=_ONE)
def every(self, calls):
    with _noted_run(self.request, [text for call in calls for text in call.args[0]]) as result:
        return result


def _split(result, calls):
    return [{**result, "part": call.args[0][0]} for call in calls]


@_task("split", Merge(key_of, keep="all", split=_split), **_LATE)
def split(self, calls):
    with _noted_run(self.request, [text for call in calls for text in call.args[0]]) as result:
        return result


@_task("retrying", Merge(key_of, fold=_union), exclusive=_ONE, max_retries=2, **_LATE)
def retrying(self, tokens):
    with _noted_run(self.request, tokens) as result:
        if self.request.retries < 1:
            raise self.retry(countdown=0.2)
        return result


TASKS = (first, last, fold, every, split, retrying)

#: Tasks with results on the broker's server; tasks that ack early; tasks whose callers get one part each.
ON_THE_BROKERS_SERVER, EARLY, SPLIT = ("merged_last",), ("merged_last", "merged_all"), ("merged_split",)


@app.task(bind=True, **_LATE)
def step(self, result, token):
    with _noted(self.request):
        ledger.note("stepped", token, has=token in result["tokens"] and result.get("part", token) == token)


@app.task(bind=True, affinity="index", **_LATE)
def whole(self, results, tokens):
    with _noted(self.request):
        for result, token in zip(results, tokens, strict=True):
            ledger.note("stepped", token, has=token in result["tokens"] and result.get("part", token) == token)
