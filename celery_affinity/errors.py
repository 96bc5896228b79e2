"""Every error that this package raises on purpose: `AffinityError` and its subclasses."""

from collections.abc import Callable

#: Maximum number of characters that an error shows of a value.
_MAX_SHOWN = 1000


class AffinityError(Exception):
    """Base of all errors of celery_affinity."""


class OptionError(AffinityError, ValueError):
    """An option of a task or of a call is misspelt, out of range or contradicts another.

    The error reaches the caller of ``delay``, ``apply_async`` or ``publish_many``, and nothing is published.
    """


class SettingError(AffinityError, ValueError):
    """An ``affinity_...`` setting is unknown, or its value is out of range. Workers refuse to start."""


class SchemaError(AffinityError):
    """The data on the server has a schema number that this release does not support. Nothing was changed.

    For the steps of an upgrade or a rollback see docs/how-to/upgrade.md.
    """


class TransportError(AffinityError):
    """A connection does not use this transport, or its URL or transport options are invalid."""


class PublishError(AffinityError):
    """`publish_many` failed midway. Call it again with the same calls and this error as ``resume``.

    The second `publish_many` publishes the remaining calls, and no call twice. ``__cause__`` is the original error.

    *published*: number of calls, from the first, that are certainly published. The next 500 can be published, too.
    *publish_id*: root of the calls' ids.
    """

    def __init__(self, message: str, publish_id: str, published: int) -> None:
        super().__init__(message, publish_id, published)
        self.publish_id = publish_id
        self.published = published

    def __str__(self) -> str:
        return str(self.args[0])


class QueueFull(AffinityError):  # noqa: N818 - named like queue.Full
    """The call was not published, because `affinity_max_pending` jobs of its type are pending.

    *type*: the full type.
    *pending*: number of its pending jobs.
    *most*: maximum number of pending jobs.
    """

    def __init__(self, type: str, pending: int, most: int) -> None:
        super().__init__(type, pending, most)
        self.type, self.pending, self.most = type, pending, most

    def __str__(self) -> str:
        full = f"type {self.type!r} is full: {self.pending} of its jobs wait"
        return f"{full}, and affinity_max_pending allows {self.most}"


class ResultLostError(AffinityError):
    """The result of a merged call is lost: its run has ended, but the run's result is not available."""


class NotMerged(AffinityError):  # noqa: N818 - a signal of a `fold`, not an error
    """Raised by a `fold` of a `Merge`: the second call and all later calls form the next run, not this one."""


class TraceError(AffinityError, ValueError):
    """The lab cannot read a trace file (the text names the line), or a fleet cannot be recorded now."""


class CohortDownError(AffinityError):
    """The server of *cohort* does not answer. *why* is the error."""

    def __init__(self, cohort: str, why: str) -> None:
        super().__init__(cohort, why)
        self.cohort, self.why = cohort, why

    def __str__(self) -> str:
        return f"cohort {self.cohort!r} does not answer: {self.why}"


class OutcomeUnknownError(CohortDownError):
    """The connection was lost during a change that must not be repeated: the change was made, or was not.

    *cohort*: the cohort of the change.
    *why*: the error of the connection.
    """

    def __str__(self) -> str:
        return f"the server of cohort {self.cohort!r} was lost; whether it made the change is unknown: {self.why}"


def printable(value: object, masked: Callable[[str], str] = str) -> str:
    """Return *value* as text for an error message, truncated to `_MAX_SHOWN` characters.

    *masked* removes passwords. It gets the whole text, because a part of a URL may not look like a URL.
    """
    try:
        text = masked(repr(value))
    except (ValueError, RecursionError):  # an integer with too many digits for Python, or deep nesting
        return f"a value of type {type(value).__name__} that is too large to show"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def refuse(option: str, accepted: str, got: object) -> OptionError:
    """Return the error for an invalid task option, with its name, the accepted values and the invalid value."""
    return OptionError(f"{option} must be {accepted}, got: {printable(got)}")
