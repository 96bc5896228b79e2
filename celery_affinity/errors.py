"""Every error that this package raises on purpose: `AffinityError` and its kinds."""


class AffinityError(Exception):
    """Base of all errors of celery_affinity."""


class OptionError(AffinityError, ValueError):
    """An option of a task or of a call is misspelt, out of range or contradicts another.

    The error reaches the caller of ``delay``, ``apply_async`` or ``publish_many``, and nothing is published.
    """


class SettingError(AffinityError, ValueError):
    """An ``affinity_...`` setting is unknown, or its value is out of range. Workers refuse to start."""


class SchemaError(AffinityError):
    """The data on the server has another schema number than this process writes: see docs/explanation/versions.md."""


class TransportError(AffinityError):
    """A connection does not use this transport, or its URL or its transport options cannot be used."""


class PublishError(AffinityError):
    """`publish_many` ended midway.

    *published*: number of calls, from the first, that are published for sure; the next 500 may be. *publish_id*: the
    root of the calls' ids. ``__cause__``: the error that came midway. Another `publish_many` with the same calls, and
    this error as ``resume``, publishes the rest, and no call twice.
    """

    def __init__(self, message: str, publish_id: str, published: int) -> None:
        super().__init__(message, publish_id, published)
        self.publish_id = publish_id
        self.published = published

    def __str__(self) -> str:
        return str(self.args[0])


class ResultLostError(AffinityError):
    """The run of a merged call has ended, and nobody knows its result any more: it is the result of the call."""


class NotMerged(AffinityError):  # noqa: N818 - no error of anybody: the word of a `fold` for a call that it leaves out
    """Raised by a `fold` of a Merge: the second call, and all after it, do not go into this run; they are the next."""


def refuse(option: str, accepted: str, got: object) -> OptionError:
    """Return the error for a bad option of a task: its name, what is accepted, what came instead."""
    return OptionError(f"{option} must be {accepted}, got: {got!r}")
