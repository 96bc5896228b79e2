"""kombu reports and deletes queues on this transport like on stock Celery."""

from collections import Counter

import pytest
from celery import Celery
from kombu import pools
from kombu.exceptions import ChannelError

from celery_affinity.scheduler.messages import JoinArguments
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import Keys
from celery_affinity.settings.table import Settings
from celery_affinity.settings.wire import shared_settings

#: State -> steps that create it, and the number of messages that kombu then reports.
STATES = {
    "empty": ([], 0),
    "pending": (["pending", "pending"], 2),
    "scheduled": (["scheduled"], 1),
    "claimed": (["claimed"], 0),
    "pending and scheduled": (["pending", "scheduled"], 2),
    "claimed and scheduled": (["claimed", "scheduled"], 1),
    "claimed, pending and scheduled": (["claimed", "pending", "scheduled"], 2),
    "of another queue": (["other"], 0),
}


class Side:
    """An app on stock Celery or on this transport, its queue `work`, and a worker that never finishes a job."""

    def __init__(self, transport, url, client):
        self.ours = transport != "redis"
        self.redis = client
        self.app = Celery(transport, broker=url, set_as_current=False)
        self.app.conf.broker_transport = transport
        self.connection = self.app.connection_for_write()
        self.channel = self.connection.default_channel
        self.queue = self.app.amqp.queues["work"]
        self.queue(self.channel).declare()

    def make(self, steps):
        for step in sorted(steps):  # claimed first: a worker that claims takes the pending message
            options = {"countdown": 3600} if step == "scheduled" else {}
            self.app.send_task("task", queue="else" if step == "other" else "work", **options)
            if step == "claimed":
                self.take()

    def take(self):
        """Take and keep the only message, like a worker with one slot."""
        if self.ours:
            scheduler = Scheduler(self.redis, Keys())
            scheduler.join(JoinArguments("worker", "worker", ["work"], 1, 0, "", []), shared_settings(Settings()))
            assert self.redis.hlen(Keys().key("claims", "worker")) == 1
        else:
            with self.connection.channel() as reader:
                reader.do_restore = False
                self.kept = self.queue(reader).get()
                assert self.kept is not None
                reader.qos._delivered.clear()  # or the end of the channel would requeue the message

    def passively_declared(self):
        """Return the number of messages, or None if the queue does not exist."""
        try:
            declared = self.channel.queue_declare("work", passive=True)
        except ChannelError:
            return None
        assert self.queue(self.channel).queue_declare(passive=True) == declared
        return declared.message_count

    def close(self):
        self.connection.release()
        self.app.close()
        pools.reset()


@pytest.fixture
def sides(valkey, redis_client):
    """Return a function that makes a side on an empty server."""
    made = []

    def make(transport):
        redis_client.flushall()
        made.append(Side(transport, valkey.url, redis_client))
        return made[-1]

    yield make
    for each in made:
        each.close()


BOTH = ("redis", "celery_affinity:Transport")


def on_both(sides, state, look):
    """Return the results of *look* on stock Celery and on this transport, with a queue in a state."""
    results = []
    for transport in BOTH:
        side = sides(transport)
        side.make(STATES[state][0])
        results.append(look(side))
    return results


@pytest.mark.parametrize("state", STATES)
def test_passive_declaration_counts_messages_like_stock_celery(sides, state):
    stock, ours = on_both(sides, state, Side.passively_declared)
    assert stock == ours == (STATES[state][1] or None)


@pytest.mark.parametrize("state", STATES)
def test_purge_deletes_the_same_messages_as_stock_celery(sides, state):
    def purge_twice(side):
        side.app.amqp.queues.select(["work"])
        first, second = side.app.control.purge(connection=side.connection), side.channel.queue_purge("work")
        return first, second, side.passively_declared()

    stock, ours = on_both(sides, state, purge_twice)
    assert stock == ours == (STATES[state][1], 0, None)


@pytest.mark.parametrize("if_empty", [True, False])
@pytest.mark.parametrize("state", STATES)
def test_delete_removes_a_queue_with_its_waiting_jobs(sides, state, if_empty):
    def delete(side):
        side.queue(side.channel).delete(if_empty=if_empty)
        bound = side.redis.smembers("_kombu.binding.work")
        return side.passively_declared(), bool(bound)

    stock, ours = on_both(sides, state, delete)
    is_kept = if_empty and STATES[state][1] > 0
    assert stock == ours == ((STATES[state][1], True) if is_kept else (None, False))


def test_claimed_jobs_and_other_queues_outlive_a_deleted_queue(sides):
    side = sides(BOTH[1])
    side.make(["claimed", "scheduled", "pending", "other"])
    side.queue(side.channel).delete()
    states = Counter(side.redis.hget(each, "state") for each in side.redis.scan_iter(Keys().key("job", "*")))
    assert states == {b"claimed": 1, b"pending": 1}


def test_scheduled_jobs_are_counted_in_few_round_trips(sides):
    side = sides(BOTH[1])
    scheduler = Scheduler(side.redis, Keys())
    with side.app.producer_pool.acquire(block=True) as producer:
        for number in range(1100):
            side.app.send_task("task", queue="else" if number % 11 else "work", countdown=3600, producer=producer)
    before = side.redis.info("stats")["total_reads_processed"]
    assert scheduler.reader.scheduled_count("work") == 100
    assert side.redis.info("stats")["total_reads_processed"] - before < 30


def test_active_declaration_reads_no_scheduled_jobs(sides):
    side = sides(BOTH[1])
    side.make(["scheduled"])
    side.redis.config_resetstat()
    side.channel.queue_declare("work")
    assert not any("zrange" in command for command in side.redis.info("commandstats"))


def test_deleted_mailboxes_are_not_purged(sides, monkeypatch):
    side, purged = sides(BOTH[1]), []
    monkeypatch.setattr(Scheduler, "purge", lambda _, queue: purged.append(queue))
    side.app.control.ping(timeout=0.1)
    with side.app.events.Receiver(side.connection).consumer_context(wakeup=False):
        pass
    side.queue(side.channel).delete()
    assert purged == ["work"]
