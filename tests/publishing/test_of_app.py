"""An app's settings tell if the app selects this transport. A replaced method looks like the original."""

import inspect

import pytest

from celery_affinity import Transport
from celery_affinity.publishing.app_config import replaces, uses_affinity_transport


@pytest.mark.parametrize(
    ("broker_transport", "ours"),
    [
        ("celery_affinity:Transport", True),
        ("celery_affinity.transport:Transport", True),
        (Transport, True),
        ("celery_affinity_of_others:Transport", False),
        ("redis", False),
        (None, False),
    ],
)
def test_settings_select_this_transport(broker_transport, ours):
    assert uses_affinity_transport(broker_transport) is ours


def test_replaced_method_gets_every_option_and_looks_original():
    class Owner:
        def method(self, one, *, original=0, **options):
            return one, original, options

    signature = inspect.signature(Owner.method)

    @replaces(Owner, "missing")
    @replaces(Owner, "method")
    def method(original, /, owner, *args, **options):
        return "replaced", *original(owner, *args, **options)

    assert Owner().method(1, original=2, three=3) == ("replaced", 1, 2, {"three": 3})
    assert inspect.signature(Owner.method) == signature
    assert not hasattr(Owner.method, "__wrapped__"), "Celery's annotations would restore the original"
    assert not hasattr(Owner, "missing")
