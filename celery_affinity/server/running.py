"""The running of scripts: by digest, loaded if the server lost them, again after a repair; the meaning of errors."""

import logging
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import redis
from redis.exceptions import BusyLoadingError, NoPermissionError, NoScriptError, ResponseError

from ..rules.keys import Keys
from ..rules.protocol import LONGEST_NAME, MOST_GAINED
from .calls import Call, pages
from .passing import passes
from .reader import Reader
from .scripts.assembling import Argument, Script, load

logger = logging.getLogger(__name__)

#: Errors that a server answers instead of a reply.
_REFUSALS = (BusyLoadingError, ResponseError)

#: Errors of a script that lacks the right to a command; the second is Redis 7.0's.
_NO_RIGHT = ("ACL failure", "The user executing the script can't")

#: Errors of a script that met a key of another type, or a number that is none. Every other refusal begins with a code,
#: or speaks of what a script may do.
_SPOILED = re.compile(
    r"(.*: )?WRONGTYPE |(?!([A-Z]{3,} |.*ACL |.*to the same slot|.* (in|from)( read-only)? scripts?\b)).*user_script",
    re.DOTALL,
)

#: Pause, s, after a repair that found nothing, before another one.
_IN_VAIN_S = 5.0

#: The script that producers call. A user who may load scripts loads it for those who may not (docs/how-to/acl.md).
_OF_PRODUCERS = "publish"


class ScriptRunner:
    """Runs scripts on the keys of one cohort, which *reader* reads.

    *client* adds no prefix to keys and repeats no command by itself. Errors of a state that will pass (a server that
    loads, a replica after a failover) are raised as redis.ConnectionError, which kombu and Celery retry.
    """

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self.client: Any = client  # redis-py's types leave open whether a reply is bytes, str or awaited
        self.keys = keys
        self.reader = Reader(client, keys)
        self._in_vain_until_s = 0.0

    def load_for_producers(self) -> None:
        """Load the script that producers call: their users may have no right to load it."""
        script = load(_OF_PRODUCERS)
        try:
            self.client.script_load(script.source)
        except _REFUSALS as exc:
            _raise_meaning(exc, [script])
            raise

    def _commands(self, calls: Iterable[Call]) -> list[tuple[Any, ...]]:
        """Return *calls* as commands, for a connection whose replies are read later."""
        return [("EVALSHA", script.sha, 1, self.keys.base, *arguments) for script, arguments in calls]

    def _run(self, script: Script, rest: Iterable[Argument] = (), **values: Argument) -> Any:
        (reply,) = self._run_together([(script, script.arguments(rest, **values))])
        return reply

    def _run_together(self, calls: Sequence[Call]) -> list[Any]:
        """Run scripts in one round trip. If a script meets a spoiled key, repair the key and run all of them again."""
        try:
            return self._attempt(calls)
        except ResponseError as exc:
            if not _SPOILED.match(str(exc)) or time.monotonic() < self._in_vain_until_s:
                raise
            logger.error(
                "The script %s failed; the data in Redis are checked and repaired: %s",
                " and ".join(script.name for script, _ in calls),
                exc,
            )
            if not self._repaired([value for _, arguments in calls for value in arguments]):
                raise
            return self._attempt(calls)

    def _go_on(self, more: bytes) -> None:
        """Claim jobs of the types that a reply names, until no pending job fits a free slot."""
        types = more.split()
        while types:
            (more,) = self._run(load("claim"), rest=types[:MOST_GAINED])
            types = [*more.split(), *types[MOST_GAINED:]]

    def repair(
        self, failed: Sequence[Argument] | None = None, *, thorough: bool = False, says_only: bool = False
    ) -> list[str]:
        """Set aside or make again keys that somebody else deleted or overwrote. Return, and log, a line for each.

        *failed*: the arguments of a call that failed. *thorough*: look at all, as if one had. *says_only*: look
        at all, change nothing, and log nothing.
        """
        how = 2 if says_only else int(thorough or failed is not None)
        names = [each for each in failed or () if len(str(each)) <= LONGEST_NAME]
        found: list[str] = []
        types: list[bytes] = []
        first = 0
        while first >= 0:
            rest = names if first == 0 else ()
            arguments = load("repair").arguments(rest, first=first, thorough=how)
            (reply,) = self._attempt([(load("repair"), arguments)])
            first, some, what = reply
            types += some
            found += [each.decode(errors="replace") for each in what]
        if says_only:
            return list(dict.fromkeys(found))
        for each in found:
            logger.error("Another program deleted or overwrote the fleet's data in Redis: %s", each)
        if found:
            for page in pages(types):
                self._go_on(b" ".join(page))
        return found

    def _repaired(self, failed: Sequence[Argument]) -> bool:
        """Repair, and return whether there was something to repair that this user may repair."""
        with suppress(NoPermissionError):
            if self.repair(failed):
                return True
        self._in_vain_until_s = time.monotonic() + _IN_VAIN_S
        return False

    def _attempt(self, calls: Sequence[Call]) -> list[Any]:
        """Run scripts in one round trip. Load them if the server has lost them."""
        try:
            try:
                return self._evalsha(calls)
            except NoScriptError:
                # The server lost all scripts: a fleet at work gives producers theirs again with its next call.
                for script in dict.fromkeys([*(script for script, _ in calls), load(_OF_PRODUCERS)]):
                    self._load(script)  # that of producers last: an error names the script of the call
                return self._evalsha(calls)
        except _REFUSALS as exc:
            _raise_meaning(exc, (script for script, _ in calls))
            raise

    def _load(self, script: Script) -> None:
        try:
            self.client.script_load(script.source)
        except NoPermissionError as exc:
            if script.name != _OF_PRODUCERS:
                raise
            # The error will pass with the first worker: the call is to be repeated.
            raise redis.ConnectionError(
                f"the server does not have the script of {script.name}, and the broker's user may not load it: a "
                "worker or a dispatcher of this version of celery_affinity does, when it starts and after a "
                f"restart of the server ({exc})"
            ) from exc

    def _evalsha(self, calls: Sequence[Call]) -> list[Any]:
        if len(calls) == 1:
            script, arguments = calls[0]
            return [self.client.evalsha(script.sha, 1, self.keys.base, *arguments)]
        with self.client.pipeline(transaction=False) as pipe:
            for script, arguments in calls:
                pipe.evalsha(script.sha, 1, self.keys.base, *arguments)
            replies: list[Any] = pipe.execute()
            return replies


def _raise_meaning(exc: redis.RedisError, scripts: Iterable[Script]) -> None:
    """Raise what an error of the server means: a state that will pass, or a missing right. Else return."""
    # After NOSCRIPT twice in a row, the server lost its scripts again before it could run the one.
    if passes(exc) or isinstance(exc, NoScriptError):
        raise redis.ConnectionError(str(exc)) from exc
    if isinstance(exc, NoPermissionError) or any(words in str(exc) for words in _NO_RIGHT):
        names = " and ".join(script.name for script in scripts)
        raise NoPermissionError(f"the broker's user has no right to {names}: {exc}") from exc
