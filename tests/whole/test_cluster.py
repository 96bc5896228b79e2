"""Fleets on a cluster of six nodes: the features of a single server, and faults of nodes."""

import json
import threading
import time

import pytest
from celery import chain, chord, group
from redis.crc import key_slot

from celery_affinity import Affinity, Merge
from celery_affinity.schema.keys import Keys

from ..support.apps import APP, app_for
from ..support.cluster import Cluster
from ..support.command import affinity
from ..support.fleet import PoolsOnACluster, closing
from ..support.ledger import ran_again
from ..support.load import Load
from ..support.processes import wait_until
from ..support.servers import EXECUTABLES

#: Max seconds after a fault until each pool has started a job.
MAX_STANDSTILL_S = 5


@pytest.fixture
def on(cluster, tmp_path):
    """Return a function that starts workers of some pools with broker and results on the cluster."""
    started = []

    def start(*pools, module=APP, **env):
        started.append(closing(PoolsOnACluster(module, cluster, tmp_path, pools, **env)))
        return started[-1].__enter__()

    yield start
    for each in started:
        each.__exit__(None, None, None)


def check_jobs(pools, pool):
    """Run jobs of every kind on *pool* and check how they end."""

    def call(task, *args, **options):
        return pools.app.signature(f"{APP}.{task}", args, queue=pool, immutable=True, **options)

    results = {
        call("pdf", "at-once").delay(): "at-once",
        call("late", "later", countdown=0.3).delay(): "later",
        call("retry", "again").delay(): pool,
        chain(call("pdf", "a"), call("pdf", "b"))(): "b",
        group(call("pdf", number) for number in range(3))(): [0, 1, 2],
        chord([call("pdf", number) for number in range(3)])(call("pdf", "body")): "body",
        **{call("late", f"keyed-{n}", 0.05, exclusive=pool, tenant="acme").delay(): f"keyed-{n}" for n in range(3)},
    }
    fails, never = call("fail", "broken").delay(), call("pdf", "never", countdown=60).delay()
    pools.app.control.revoke(never.id)
    assert {result: result.get(timeout=20) for result in results} == results
    with pytest.raises(ValueError, match="broken"):
        fails.get(timeout=20)
    wait_until(lambda: never.state == "REVOKED", 20, "the waiting job is revoked")


def check_operator_view(pools, cluster):
    """Check what an operator sees of the workers."""
    names = set(pools.workers)
    assert served(pools) == names
    found = affinity(cluster.url, "status")
    assert (found.returncode, [each for each in names if each not in found.stdout]) == (0, []), found.stderr


def served(pools):
    """Return the queues that the workers report to a broadcast."""
    with pools.app.connection_for_read() as connection:
        inspect = pools.app.control.inspect(timeout=10, limit=len(pools.workers), connection=connection)
        return {queue["name"] for queues in (inspect.active_queues() or {}).values() for queue in queues}


class Events:
    """The events of an app's workers, captured like Flower does it."""

    def __init__(self, app):
        self.found = set()
        self._connection = app.connection_for_read()
        self._receiver = app.events.Receiver(self._connection, handlers={"*": self._note})
        self._thread = threading.Thread(target=self._receiver.capture, kwargs={"wakeup": False}, daemon=True)
        self._thread.start()

    def _note(self, event):
        self.found.add((event["hostname"].partition("@")[0], event["type"]))

    def end(self):
        self._receiver.should_stop = True  # read each second
        self._thread.join(20)
        self._connection.release()


class Storm:
    """Faults under load: each job runs once, and each pool starts a job soon after each fault."""

    def __init__(self, cluster, pools):
        self.cluster, self.pools, self.load, self.standstills_s = cluster, pools, Load(pools), []
        self._wait_for_starts()

    def _wait_for_starts(self):
        """Return the seconds until each pool has started a job that was sent after this call."""
        since, began = len(self.load.sent) + len(self.pools.workers), time.monotonic()

        def all_started():
            started = self.pools.ledger.starts()
            late = [job for job in self.load.sent[since:] if job in started]
            return {job.rpartition("-")[0] for job in late} == set(self.pools.workers)

        wait_until(all_started, 60, f"each pool starts jobs\n{self.pools.logs()}")
        return time.monotonic() - began

    def inject(self, fault, *args):
        result = fault(*args)
        self.standstills_s.append(self._wait_for_starts())
        assert [name for name, worker in self.pools.workers.items() if not worker.is_running] == []
        return result

    def end(self):
        pools, sent = self.pools, self.load.end()
        wait_until(lambda: set(sent) <= set(pools.ledger.ends()), 60, f"every job ends\n{pools.logs()}")
        pools.look()
        wait_until(pools.all_slots_are_free, 30, f"all slots are free\n{pools.logs()}")
        again = ran_again(pools.ledger.entries(), self.cluster.deaths_s)
        assert [run for run in again if run.job in sent] == []
        assert served(pools) == set(pools.workers)


@pytest.mark.test
def test_cluster_runs_all_jobs_despite_a_killed_primary(on, cluster):
    pools = on("prefork", "threads", HEARTBEAT_INTERVAL="1", EVENTS="1")
    events = Events(pools.app)
    try:
        for pool in pools.workers:
            check_jobs(pools, pool)
        check_operator_view(pools, cluster)
        expected = {(pool, "task-succeeded") for pool in pools.workers}
        wait_until(lambda: expected <= events.found, 20, f"events come: {events.found}")
    finally:
        events.end()
    storm = Storm(cluster, pools)
    dead, _ = storm.inject(cluster.kill_owner)
    storm.end()
    cluster.revive(dead)


@pytest.fixture
def cluster_of_redis(tmp_path):
    executable = EXECUTABLES["redis"] or pytest.skip("redis-server is not installed")
    with Cluster(directory=tmp_path, executable=executable) as found:
        yield found


@pytest.mark.slow
def test_redis_cluster_runs_jobs_during_faults(cluster_of_redis, tmp_path):
    cluster = cluster_of_redis
    with closing(PoolsOnACluster(APP, cluster, tmp_path, ["prefork", "threads"])) as pools:
        for pool in pools.workers:
            check_jobs(pools, pool)
        storm = Storm(cluster, pools)
        storm.inject(cluster.hand_over)
        storm.inject(cluster.kill_owner)
        storm.end()


@pytest.mark.slow
def test_other_pools_run_jobs_on_a_cluster(on, cluster):
    pools = on("solo", "gevent", "eventlet")
    for pool in pools.workers:
        check_jobs(pools, pool)
    check_operator_view(pools, cluster)


@pytest.mark.slow
def test_merged_calls_get_results_on_a_cluster(on):
    pools = on("threads", module="tests.support.apps.merging")
    rules = {"fold": Affinity(merge=Merge("{city}", fold="tests.support.apps.merging.union", wait=0.5))}
    app = app_for(pools.url, result_backend=pools.url, affinity_task_rules=rules)  # settings are read once
    calls = [{"city": "Oslo", "changes": [number]} for number in range(5)]
    results = [app.send_task("fold", kwargs=call, queue="threads") for call in calls]
    assert [sorted(result.get(timeout=20)) for result in results] == [list(range(5))] * 5
    header = [app.signature("fold", kwargs=call, queue="threads") for call in calls]
    parts = chord(header)(app.signature("fold", ("Bergen", [7]), queue="threads", immutable=True))
    assert parts.get(timeout=20) == [7], "each call of the run is counted as a part"
    app.close()


@pytest.mark.slow
def test_cohorts_on_other_shards_continue_during_a_failover(on, cluster):
    """Each type has its own cohort, and each cohort its own shard."""
    conf = {"affinity_cohorts": {"eu": {"types": ["threads"]}, "us": {"types": ["gevent"]}}}
    keys = {"threads": Keys(cohort="eu"), "gevent": Keys(cohort="us"), "prefork": Keys()}
    owners = {pool: cluster.owner_of(each.base) for pool, each in keys.items()}
    assert len(set(owners.values())) == 3
    pools = on(*keys, HEARTBEAT_INTERVAL="1", CONF=json.dumps(conf))
    # The policy of a call applies to the broker connection, and the app's policy to other cohorts.
    pools.app.conf.task_publish_retry_policy = {"max_retries": 300, "interval_start": 0.1, "interval_max": 0.2}
    load = Load(pools)

    def started(pool):
        return sum(each.rpartition("-")[0] == pool for each in pools.ledger.starts())

    def wait_for_starts():
        more = {pool: started(pool) + 20 for pool in keys}
        wait_until(lambda: all(started(pool) >= more[pool] for pool in keys), 20, f"jobs start\n{pools.logs()}")

    wait_for_starts()
    dead = owners["threads"]
    cluster.kill_primary(dead)
    wait_for_starts()
    cluster.revive(dead)
    moved = key_slot(keys["gevent"].base.encode())
    owners["gevent"].ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", moved, moved, "NODE", owners["prefork"].id)
    wait_until(lambda: cluster.owner_of(keys["gevent"].base) is owners["prefork"], 30, "the slot has moved")
    wait_for_starts()
    sent = load.end()
    wait_until(lambda: set(sent) <= set(pools.ledger.ends()), 60, f"every job ends\n{pools.logs()}")
    assert {job: runs for job, runs in pools.ledger.starts().items() if runs != 1} == {}
    assert served(pools) == set(pools.workers)


@pytest.mark.slow
def test_results_survive_a_failover_of_their_node(on, cluster):
    """The node with the results dies while chords and groups run; the jobs are on another node."""
    pools = on("prefork", "threads")

    def call(number, pool, *args):
        return pools.app.signature(f"{APP}.late", (f"{pool}-{number}", *args), queue=pool, immutable=True)

    dead, found = [], []
    for number in range(20):
        for pool in pools.workers:
            header = [call(f"{number}.{part}", pool, 0.1) for part in range(3)]
            found += [chord(header)(call(f"{number}.body", pool)), group(header)()]
        if number == 10:
            dead.append(cluster.owner_of(pools.app.backend.tag))
            assert dead[0] is not cluster.owner
            dead[0].kill()
    values = [result.get(timeout=60) for result in found]
    assert all(values)
    assert len(values) == 80
    cluster.revive(dead[0])


@pytest.mark.slow
def test_slot_migration_by_key_pauses_jobs_without_loss(on, cluster):
    pools = on("prefork", "threads", HEARTBEAT_INTERVAL="1")
    storm = Storm(cluster, pools)
    storm.inject(lambda: cluster.reshard(cluster.other, pause_s=3.0))
    storm.end()
    for worker in pools.workers.values():
        assert "checked and repaired" not in worker.log()
        assert 0 < worker.log().count("is being moved key by key") < 60


@pytest.mark.slow
def test_repeated_node_faults_lose_or_repeat_no_job(on, cluster):
    storm = Storm(cluster, on("prefork", "threads", "solo", "gevent", HEARTBEAT_INTERVAL="1"))
    for _ in range(5):
        storm.inject(cluster.hand_over)
        storm.inject(lambda: cluster.migrate(cluster.other))
        dead, _ = storm.inject(cluster.kill_owner)
        storm.inject(cluster.revive, dead)
        added = storm.inject(cluster.add)
        former = cluster.owner
        storm.inject(cluster.migrate, added)
        storm.inject(cluster.migrate, former)
        storm.inject(cluster.remove, added)
    storm.end()
    assert max(storm.standstills_s) <= MAX_STANDSTILL_S, storm.standstills_s
