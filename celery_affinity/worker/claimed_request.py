"""A request that Celery makes of a claimed job: the claim, the times, and checks of the message's values."""

import time
from typing import TYPE_CHECKING, Any

from celery.exceptions import InvalidTaskError
from celery.worker.state import revoked as revoked_tasks

from ..callers.caller_events import SENDS_EVENTS, are_sent
from ..callers.failure import words
from ..client.first_try import Until, rules_in
from ..client.of_app import merge_of
from ..client.stamp import PROPERTY
from ..clock import SECOND_US, now_s
from ..log_limit import limited_logger
from ..membership.held import is_claim, job_in
from ..membership.reporting import Reporting
from ..rules.marks import is_batch
from ..rules.rule_texts import texts_of_keys
from ..rules.untrusted import is_number, shape_of, text, whole
from ..server.passing import traceback_of
from ..transport.consumed import WAIT
from ..transport.inbox import Inbox
from . import unclaimed

if TYPE_CHECKING:
    from celery.worker.request import Request as _Request
else:
    _Request = object  # mixed into Celery's class, or into what a user derived from it

logger = limited_logger(__name__)

#: Time, s, from which on a number is no time limit.
_LONGEST_LIMIT_S = 1e9


#: Number of retries that no task has. Celery raises 2 to their power for ``retry_backoff``.
_MOST_RETRIES = 1_000_000

_NO_LIMITS = ([None, None], (None, None))


def _is_limit(limit: object) -> bool:
    return limit is None or is_number(limit, _LONGEST_LIMIT_S)


class ClaimedRequest(_Request):
    """A mixin for ``celery.worker.request.Request``. The request of an unclaimed message takes a slot, and no more."""

    _reporting: Reporting | None = None
    _tag: str
    #: Whether the strategy of the task keeps the request in a buffer (`buffers`).
    is_buffered = False

    def __init__(self, message: Any, **options: Any) -> None:
        inbox: Inbox | None = getattr(message.channel, "inbox", None)
        tag = message.delivery_tag
        reporting = inbox.reporting_of(tag) if inbox is not None and is_claim(tag) else None
        if reporting is not None:
            # Celery by itself would ack in a later iteration of the loop, perhaps after the end of the task is told.
            options.update(on_ack=message.ack_log_error, on_reject=message.reject_log_error)
        super().__init__(message, **options)
        self._check_what_celery_takes_on_trust()
        if reporting is not None:
            self._tag = tag
            is_of_a_batch = is_batch(job_in(tag))
            if is_of_a_batch:
                self._check_that_it_can_run_all_calls()
            self._reporting = reporting
            self._show_its_eta()
            self._say_until_when()
            if is_of_a_batch:
                self._say_whether_events_are_sent()
            self._say_when_it_waited()
            reporting.claims.bind(tag, self)
        else:
            unclaimed.add(self)

    @property
    def holds_a_key(self) -> bool:
        """Whether the claim keeps other jobs of an exclusive key from being claimed."""
        rules = rules_in(self.request_dict["properties"].get(PROPERTY))
        return bool(rules and texts_of_keys(rules)[1])

    def _check_what_celery_takes_on_trust(self) -> None:
        """Raise InvalidTaskError for values that would end the event loop later: Celery refuses the message then."""
        limits = self.time_limits
        good = limits in _NO_LIMITS or (
            isinstance(limits, (list, tuple)) and len(limits) == 2 and all(map(_is_limit, limits))
        )
        if not good:
            raise InvalidTaskError(
                f"invalid timelimit, of type {shape_of(limits)}: it must be two numbers of seconds, or null"
            )
        retries = self.request_dict.get("retries")
        if retries is not None and whole(retries, 0, _MOST_RETRIES) is None:  # the exponent of a pause
            raise InvalidTaskError(f"invalid retries, of type {shape_of(retries)}: it must be a whole number")
        embedded = self._payload[2] or {}
        if not (isinstance(embedded, dict) and set(map(type, embedded)) <= {str}):
            raise InvalidTaskError(f"invalid callbacks in the message's body, of type {shape_of(embedded)}")
        if text(self.id) is None or not isinstance(self.name, str):
            shapes = f"{shape_of(self.id)}, or name, of type {shape_of(self.name)}"
            raise InvalidTaskError(f"invalid task id, of type {shapes}: they must be texts")

    def _check_that_it_can_run_all_calls(self) -> None:
        """Raise InvalidTaskError for several calls that a producer merged, if the task does not merge here."""
        if merge_of(self.task) is not None:
            return
        refusal = InvalidTaskError(
            f"its producer merged calls of task {self.name}, which this worker cannot run as one: neither the task's "
            "affinity nor affinity_task_rules says merge here"
        )
        try:  # a dispatcher tells the other callers
            self.task.backend.mark_as_failure(self.id, refusal, request=self._context)
        except Exception as exc:
            logger.error(
                "Task %s[%s] is refused, but its failure could not be stored: %s",
                *(self.name, self.id, words(exc)),
                exc_info=traceback_of(exc),
            )
        raise refusal

    def _show_its_eta(self) -> None:
        """Let the task see the ETA of its caller. The message has no ETA any more: a worker would wait once more."""
        stamp = self.request_dict["properties"].get(PROPERTY)
        eta = stamp.get("eta") if isinstance(stamp, dict) else None
        if eta:
            self.request_dict["eta"] = eta

    def _say_until_when(self) -> None:
        """Have a retry, which this host publishes, expire when this job does, whatever the clock here says."""
        assert self._reporting is not None, "it is a claim"
        left_us = self._reporting.claims.left_us(self._tag)
        if left_us is not None:
            properties = self.request_dict["properties"]
            kept = properties.get(PROPERTY)
            until = Until(self.request_dict.get("expires"), now_s() + left_us / SECOND_US)
            properties[PROPERTY] = {**(kept if isinstance(kept, dict) else {}), "until": until}

    def _say_whether_events_are_sent(self) -> None:
        """Tell the process that runs merged calls whether to send the events of each call to monitors."""
        self.request_dict[SENDS_EVENTS] = self.task.send_events and are_sent(self.eventer)

    def _say_when_it_waited(self) -> None:
        """Have the process that records the wait know its begin and end by this host's clock, in Unix time, ns."""
        assert self._reporting is not None, "it is a claim"
        wait = self.request_dict["properties"].get(WAIT)
        held = self._reporting.claims.find(self._tag)
        if wait is None or held is None:
            return
        here_us = round((time.monotonic() - held.held_since_s) * SECOND_US)  # with lookahead, it came some time ago
        until_ns = time.time_ns() - here_us * 1000
        wait.update(since_ns=until_ns - held.waited_us * 1000, until_ns=until_ns)

    def maybe_expire(self) -> Any:
        """Return whether the job has expired since its claim, by the server's clock: this host's may be wrong."""
        if self._reporting is None:
            return super().maybe_expire()
        left_us = self._reporting.claims.left_us(self._tag)
        if left_us is None and not (self.message.headers or {}).get("expires"):
            # The first version of the protocol has the expiry in the body, which no server reads.
            return super().maybe_expire()
        if left_us is None or left_us > 0:
            return False
        revoked_tasks.add(self.id)  # as Celery does: `inspect revoked` shows the task
        return True
