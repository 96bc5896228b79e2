"""The same no-op task for dramatiq, with its defaults."""

import json
import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks import ledger

dramatiq.set_broker(RedisBroker(url=json.loads(os.environ["BENCHMARK_CONF"])["broker_url"]))


@dramatiq.actor
def noop(number):
    ledger.note(number)
