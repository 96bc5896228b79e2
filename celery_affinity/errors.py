"""Every error that this package raises on purpose: `AffinityError` and its kinds."""

from collections.abc import Callable

#: Maximum number of characters that an error shows of a value.
_MOST_SHOWN = 1000


class AffinityError(Exception):
    """Base of all errors of celery_affinity."""


class OptionError(AffinityError, ValueError):
    """An option of a task or of a call is misspelt, out of range or contradicts another.

    The error reaches the caller of ``delay``, ``apply_async`` or ``publish_many``, and nothing is published.
    """


class SettingError(AffinityError, ValueError):
    """An ``affinity_...`` setting is unknown, or its value is out of range. Workers refuse to start."""


class SchemaError(AffinityError):
    """The data on the server has another schema number than this release works with. Nothing was changed.

    The page docs/how-to/schema-error.md has the steps, for an upgrade and for a rollback.
    """


class TransportError(AffinityError):
    """A connection does not use this transport, or its URL or its transport options cannot be used."""


class PublishError(AffinityError):
    """`publish_many` failed midway. Call it again with the same calls and this error as ``resume``.

    The second `publish_many` publishes the remaining calls, and no call twice.

    *published*: number of calls, from the first, that are certainly published. The next 500 calls may be published,
    too. *publish_id*: the root of the calls' ids. ``__cause__``: the original error.
    """

    def __init__(self, message: str, publish_id: str, published: int) -> None:
        super().__init__(message, publish_id, published)
        self.publish_id = publish_id
        self.published = published

    def __str__(self) -> str:
        return str(self.args[0])


class QueueFull(AffinityError):  # noqa: N818 - the word that users of bounded queues know
    """The call was not published, because `affinity_max_pending` jobs of its type wait.

    *type*: the full type; *pending*: the number of its waiting jobs; *most*: the largest number that is allowed.
    """

    def __init__(self, type: str, pending: int, most: int) -> None:
        super().__init__(type, pending, most)
        self.type, self.pending, self.most = type, pending, most

    def __str__(self) -> str:
        full = f"type {self.type!r} is full: {self.pending} of its jobs wait"
        return f"{full}, and affinity_max_pending allows {self.most}"


class ResultLostError(AffinityError):
    """The result of a merged call: its run has ended, and the run's own result is lost."""


class NotMerged(AffinityError):  # noqa: N818 - no error of anybody: the word of a `fold` for a call that it leaves out
    """Raised by a `fold` of a `Merge`: the second call and all later calls form the next run, not this one."""


class TraceError(AffinityError, ValueError):
    """A file is no trace that the lab can read, in the line that the text names, or a fleet cannot be recorded now."""


class CohortDownError(AffinityError):
    """The server of a cohort does not answer. *cohort*: its name; *why*: the error."""

    def __init__(self, cohort: str, why: str) -> None:
        super().__init__(cohort, why)
        self.cohort, self.why = cohort, why

    def __str__(self) -> str:
        return f"cohort {self.cohort!r} does not answer: {self.why}"


class OutcomeUnknownError(CohortDownError):
    """The connection was lost while a change was made that cannot be asked for twice: it was made, or was not.

    *cohort*: where; *why*: the error of the connection.
    """

    def __str__(self) -> str:
        return f"the server of cohort {self.cohort!r} was lost, and has made the change or not: {self.why}"


def printable(value: object, masked: Callable[[str], str] = str) -> str:
    """Return a value that was refused as an error message shows it: its beginning, if it is long.

    *masked*: removes passwords; of the whole text, since a part of a URL may not look like one.
    """
    try:
        text = masked(repr(value))
    except (ValueError, RecursionError):  # an integer of more digits than Python writes, or deep nesting
        return f"a value of type {type(value).__name__} that is too large to show"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def refuse(option: str, accepted: str, got: object) -> OptionError:
    """Return the error for a bad option of a task: its name, what is accepted, what came instead."""
    return OptionError(f"{option} must be {accepted}, got: {printable(got)}")
