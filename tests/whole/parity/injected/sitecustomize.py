"""Runs at the start of every Python process of a side, being first in ``$PYTHONPATH``.

On our side every app whose broker is Redis gets the one setting, as if its author had written it: Celery's tests make
apps in many places, and start workers that load no app of theirs at all.
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
