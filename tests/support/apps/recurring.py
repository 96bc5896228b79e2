"""An app with recurring calls. Every run is recorded with its time in a ledger outside Redis."""

import json
import os
import time

from celery.exceptions import Ignore

from celery_affinity import Affinity, Merge

from . import new_app

app = new_app("recurring", affinity_worker_timeout=5.0, affinity_heartbeat_interval=1.0)


@app.task(name="reroute", affinity=Affinity("route", merge=Merge("{city}", keep="last")))
def reroute(city, seconds=0.0, fails=False, ignores=False):
    line = {"city": city, "at": time.time()}
    time.sleep(seconds)
    with open(os.environ["LEDGER"], "a") as ledger:  # one write: lines do not mix
        ledger.write(json.dumps({**line, "end": time.time()}) + "\n")
    if fails:
        raise ValueError(city)
    if ignores:
        raise Ignore
    return city
