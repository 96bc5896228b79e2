"""Rules about the result backend: without one that answers, `get` fails, and workers cannot store results."""

from collections.abc import Iterator

from ..facts import Facts
from ..finding import Finding, ended


def backend_unknown(facts: Facts) -> Iterator[Finding]:
    results = facts.results
    if results is not None and results.unknown is not None:
        close = f"did you mean {results.meant}://? " if results.meant else ""
        yield Finding(
            "backend-unknown",
            f"result_backend is {results.url}, and Celery has no result backend {results.unknown!r}: {close}Workers do "
            "not start, and calls that want a result fail.",
            "Write redis://, rediss://, sentinel:// or another backend of Celery's, or the path of a class.",
        )


def backend_fails(facts: Facts) -> Iterator[Finding]:
    results = facts.results
    if results is not None and results.fails is not None:
        yield Finding(
            "backend-fails",
            f"The result backend {results.url} cannot be made: {ended(results.fails)}",
            "Install the package that the backend needs, or correct its URL and options.",
        )


def backend_down(facts: Facts) -> Iterator[Finding]:
    results = facts.results
    if results is None or results.down is None or (facts.down and facts.app.backend):
        return  # a backend on the broker's server is down with it
    yield Finding(
        "backend-down",
        f"The result backend {results.url} does not answer: {ended(results.down)} Workers cannot store results, and "
        "get() raises, or waits.",
        "Check that its server runs, that this machine can reach it, and that user and password are right.",
    )


RULES = (backend_unknown, backend_fails, backend_down)
