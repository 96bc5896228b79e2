"""Every error that this package raises on purpose."""


class AffinityError(Exception):
    """Base of all errors of celery_affinity."""


class OptionError(AffinityError, ValueError):
    """A task asks for something that cannot be: raised at the caller, and nothing is published."""


class SettingError(AffinityError, ValueError):
    """A setting is unknown or its value is out of range."""


class SchemaError(AffinityError):
    """The server's data was written by another major version of this package."""


class TransportError(AffinityError):
    """The app names this transport, but a connection would not use it."""


def refuse(option: str, accepted: str, got: object) -> OptionError:
    """Return the error for a bad option of a task: what was asked, what is accepted, what came."""
    return OptionError(f"{option} must be {accepted}, got: {got!r}")
