"""The scripts: headers, signatures, and a server that lost the scripts."""

import re

import pytest
import redis
from redis._parsers.base import BaseParser

from celery_affinity.rules.keys import KEYS, Keys, lua_expression, lua_source
from celery_affinity.rules.settings import SettingError
from celery_affinity.server.replies import End
from celery_affinity.server.scheduler import Scheduler
from celery_affinity.server.scripts.assembling import ARROWS, assembled, load

from ..support import passing_errors
from ..support.clocked import ClockedScheduler
from ..support.scripted_fleet import ScriptedFleet


@pytest.mark.parametrize("name", ARROWS)
def test_a_script_says_what_it_is_and_what_it_returns(name):
    source = load(name).source
    assert source.startswith(f"-- {name}: ")
    assert re.search(r"^-- RETURNS ", assembled(name), re.MULTILINE)
    assert "math.random" not in source


@pytest.mark.parametrize("name", [name for name in ARROWS if name not in ("publish", "fire", "release")])
def test_all_but_publish_begin_with_a_write_that_only_frees(name):
    source = load(name).source
    first_call = re.search(r'redis\.call\("(\w+)"', source).group(1)
    assert first_call == "UNLINK"


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_full_server_takes_a_release_whether_or_not_it_ends_something(redis_client, has_ended):
    fleet = ScriptedFleet(ClockedScheduler(redis_client, Keys()))
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    fleet.publish("next", "pdf")
    (claim,) = fleet.inbox("worker")
    if not has_ended:
        fleet.scheduler.requeue("worker", [claim[:2]], counted=False)
        fleet.inbox("worker")
    redis_client.config_set("maxmemory", "1")
    try:
        following = fleet.end("worker", claim)
    finally:
        redis_client.config_set("maxmemory", "0")
    assert [each.job_id for each in following] == (["next"] if has_ended else [])


def test_a_call_with_other_names_than_the_scripts_own_is_refused():
    with pytest.raises(TypeError, match=re.escape("leave.lua takes ('worker',), got: ('wroker',)")):
        load("leave").arguments(wroker="w")
    with pytest.raises(TypeError, match="takes nothing after"):
        load("leave").arguments(worker="w", rest=["more"])


def test_a_server_that_lost_its_scripts_is_given_them_again(redis_client):
    fleet = ScriptedFleet(ClockedScheduler(redis_client, Keys()))
    fleet.publish("job", "pdf")
    redis_client.script_flush()
    fleet.join("worker", "pdf")
    (claim,) = fleet.inbox("worker")
    redis_client.script_flush()
    fleet.scheduler.tell_ends("worker", acks=[(claim.job_id, claim.fence)], ends=[], sequence=1, inline=True)
    redis_client.script_flush()
    fleet.sequence = 1
    assert fleet.end("worker", claim) == []
    assert fleet.state("job") == "done"


@pytest.mark.parametrize(
    "reply",
    [
        "NOSCRIPT No matching script.",  # the second time in a row: lost again
        *passing_errors.PASSING,
    ],
)
def test_what_a_server_says_of_a_state_that_will_pass_is_an_error_of_the_connection(redis_client, monkeypatch, reply):
    def answer(*_):
        raise BaseParser.parse_error(reply)

    monkeypatch.setattr(redis_client, "evalsha", answer)
    with pytest.raises(redis.ConnectionError):
        Scheduler(redis_client, Keys()).tick()


def test_python_and_lua_spell_the_same_keys(redis_client):
    keys = Keys(global_keyprefix="p:", namespace="n", cohort="c")
    for name, (template, _, _) in KEYS.items():
        parts = ["x", "y", "z"][: template.count("%s")]
        expression = lua_expression(name, [repr(part) for part in parts])
        spelled = redis_client.eval(f"{lua_source()}\nreturn {expression}", 1, keys.base)
        assert spelled.decode() == keys.key(name, *parts)


def test_braces_would_break_the_hash_tag():
    with pytest.raises(SettingError, match="namespace must be a str that holds no braces"):
        Keys(namespace="a{b}")


def test_a_full_server_refuses_a_publish_whole_and_still_releases(redis_client):
    fleet = ScriptedFleet(ClockedScheduler(redis_client, Keys()))
    fleet.join("worker", "pdf")
    fleet.publish("job", "pdf")
    fleet.publish("next", "pdf")
    (claim,) = fleet.inbox("worker")
    before = sorted(redis_client.keys())
    redis_client.config_set("maxmemory", "1")
    try:
        with pytest.raises(Exception, match="maxmemory"):
            fleet.publish("refused", "pdf")
        assert sorted(redis_client.keys()) == before
        assert fleet.sync("worker").known
        (following,) = fleet.end("worker", claim)
        assert following.job_id == "next"
    finally:
        redis_client.config_set("maxmemory", "0")
    assert fleet.publish("refused", "pdf")


def test_a_worker_that_has_joined_links_no_script_in_its_loop(redis_client):
    load.cache_clear()
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    fleet.join("worker", "pdf", slots=2)
    linked = load.cache_info().misses
    fleet.scheduler.sync("worker", [], slots=2, other=0, draining=False)
    fleet.scheduler.tell_ends(
        "worker", acks=[("job", "1")], ends=[End("job", "1", "acked")], sequence=1, inline=True, most_ahead=0
    )
    fleet.publish("given back", "pdf")
    fleet.scheduler.requeue("worker", fleet.claims("worker").items(), counted=False)
    assert load.cache_info().misses == linked
