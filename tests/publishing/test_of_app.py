"""An app's settings say whether the app selects this transport."""

import pytest

from celery_affinity import Transport
from celery_affinity.publishing.app_config import uses_affinity_transport


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
def test_what_selects_this_transport(broker_transport, ours):
    assert uses_affinity_transport(broker_transport) is ours
