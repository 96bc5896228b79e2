"""Split a fleet into cohorts: the page's example, its commands, and the simulation of one type on several shards."""

import json

from benchmarks.shards import simulate
from celery_affinity.embedded.server import EmbeddedServer
from celery_affinity.scheduler.reader import Reader
from celery_affinity.schema.keys import Keys

from ..support.pages import blocks
from ..support.processes import run_celery

PAGE = "docs/how-to/cohorts.md"


def test_the_example_sends_each_type_to_its_cohort(valkey, redis_client, tmp_path):
    code = blocks(PAGE)["proj.py"]
    code = code.replace("redis://localhost:6379/0", valkey.url)
    with EmbeddedServer() as other:
        (tmp_path / "proj.py").write_text(code.replace("redis://localhost:6379/1", other.url))
        env = {"PYTHONPATH": str(tmp_path)}
        for type_ in ("pdf", "gpu.big", "eu.pdf"):
            sent = run_celery("-A", "proj", "call", "work", "--queue", type_, env=env)
            assert sent.returncode == 0, sent.stderr
        shown = run_celery("-A", "proj", "affinity", "--cohort", "eu", "status", "--json", env=env)
        assert [each["type"] for each in json.loads(shown.stdout)["types"]] == ["eu.pdf"], shown.stderr
    assert Reader(redis_client, Keys(cohort="ml")).pending("gpu.big") == 1
    assert Reader(redis_client, Keys()).pending("pdf") == 1


def test_the_map_is_changed_once_nothing_of_a_type_that_moves_is_left(valkey, redis_client, tmp_path):
    app = f"""
from celery import Celery
app = Celery("shop", broker={valkey.url!r})
app.conf.broker_transport = "celery_affinity:Transport"
app.conf.affinity_cohorts = COHORTS
"""
    for name, cohorts in (("before", {}), ("after", {"ml": {"types": ["gpu*"]}})):
        (tmp_path / f"{name}.py").write_text(app.replace("COHORTS", repr(cohorts)))
    env = {"PYTHONPATH": str(tmp_path)}
    assert run_celery("-A", "before", "call", "work", "--queue", "gpu", env=env).returncode == 0
    refused = run_celery("-A", "after", "affinity", "cohorts", "--adopt", env=env)
    assert "cohort 'default' has jobs or workers of types that the app's map has elsewhere: gpu" in refused.stderr
    assert run_celery("-A", "before", "purge", "-f", "-Q", "gpu", env=env).returncode == 0
    adopted = run_celery("-A", "after", "affinity", "cohorts", "--adopt", env=env)
    assert adopted.stdout.splitlines() == ["fleet: ml=gpu* (revision 1)", "app:   ml=gpu*"], adopted.stderr
    refused = run_celery("-A", "before", "affinity", "status", env=env)
    assert "affinity_cohorts must be the map of the fleet, 'ml=gpu*' (revision 1), got: 'no cohorts'" in refused.stderr


def test_shards_whose_slots_do_not_move_wait_longer_and_keys_make_them_unequal():
    one = simulate(shards=1, jobs=3_000, moves=False)
    kept, moved = (simulate(shards=8, jobs=3_000, moves=moves) for moves in (False, True))
    keyed = simulate(shards=8, jobs=3_000, moves=False, keyed=0.5)
    assert one.overtaken_s == 0
    assert one.p99_s < kept.p99_s < keyed.p99_s
    assert moved.p99_s < kept.p99_s
    assert moved.overtaken_s > 0
    assert keyed.largest_share > kept.largest_share
