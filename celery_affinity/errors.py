"""Every error that this package raises on purpose."""


class AffinityError(Exception):
    """Base of all errors of celery_affinity."""


class OptionError(AffinityError, ValueError):
    """A task asks for something that cannot be: raised at the caller, and nothing is published."""


class SettingError(AffinityError, ValueError):
    """A setting is unknown or its value is out of range."""


class SchemaError(AffinityError):
    """What stands on the server has another schema number than this process writes: docs/explanation/versions.md."""


class TransportError(AffinityError):
    """The app names this transport, but a connection would not use it."""


class PublishError(AffinityError):
    """`publish_many` ended midway: the first *published* calls are, and it cannot be known of some that follow.

    *publish_id*: what the ids of its calls are made of. Given to another `publish_many` as ``resume``, none is
    published twice. ``__cause__`` is why.
    """

    def __init__(self, message: str, publish_id: str, published: int) -> None:
        super().__init__(message, publish_id, published)
        self.publish_id = publish_id
        self.published = published

    def __str__(self) -> str:
        return str(self.args[0])


def refuse(option: str, accepted: str, got: object) -> OptionError:
    """Return the error for a bad option of a task: what was asked, what is accepted, what came."""
    return OptionError(f"{option} must be {accepted}, got: {got!r}")
