"""The app of `tests.support.apps.typed` in another namespace, on a machine whose clock is an hour ahead."""

import time

from .typed import app

_now = time.time
time.time = lambda: _now() + 3600
app.conf.broker_transport_options = {**app.conf.broker_transport_options, "namespace": "elsewhere"}
