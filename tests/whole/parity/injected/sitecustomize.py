"""Python runs this at the start of every process of a side, since its folder is first in ``$PYTHONPATH``.

On our side, every app with a Redis broker gets the transport setting: Celery's tests create apps in many places, and
start workers without an app.
"""

import os
from functools import wraps

TRANSPORT = os.environ.get("PARITY_TRANSPORT")

if TRANSPORT:
    from celery.app.base import Celery

    load_config = Celery._load_config

    @wraps(load_config)
    def load_config_and_set_the_transport(app):
        conf = load_config(app)
        if conf.broker_transport is None and str(conf.broker_url).startswith("redis"):
            conf.broker_transport = TRANSPORT
        return conf

    Celery._load_config = load_config_and_set_the_transport
