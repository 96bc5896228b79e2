"""The library: its files, the two ways to call it, signatures, and a server that lost it."""

import re
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
import redis
from redis._parsers.base import BaseParser

from celery_affinity import lua
from celery_affinity.errors import SettingError
from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.lua import generated
from celery_affinity.lua.library import BRING_JOBS, FUNCTION_NAMES, assemble, function_call, server_function
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema.keys import KEYS, Keys

from ..support import passing_errors
from ..support.scripted_fleet import ScriptedFleet


def test_a_file_says_what_it_is(subtests):
    for path in sorted(Path(lua.__file__).parent.rglob("*.lua")):
        with subtests.test(path.stem):
            source = path.read_text()
            assert re.match(r"-- \w+: ", source)
            assert "math.random" not in source
            if path.parent.name == "functions":
                for name in re.findall(r"^function functions\.(\w+)\(ARGV\)", source, re.MULTILINE):
                    assert re.search(rf"^-- {name}: .*\n(--.*\n)*-- Returns ", source, re.MULTILINE), name


def test_a_table_is_shared_by_files_of_one_folder_only():
    files = re.findall(r"^do -- (?!functions/|generated)(.*)/.*\n((?s:.*?))(?=^do -- |\Z)", assemble(), re.MULTILINE)
    tables = {(name, folder) for folder, text in files for name in re.findall(r"^function (\w+)\.", text, re.MULTILINE)}
    assert len(tables) > 50
    shared = {name for name, times in Counter(name for name, _ in tables).items() if times > 1}
    assert shared == {"hooks"}, "a hook is in the file of its rule"


def test_a_rule_has_every_hook_and_is_found_by_its_mark():
    text = assemble()
    hooks = re.findall(r"^function default_hooks\.(\w+)\(", text, re.MULTILINE)
    assert len(hooks) > 10
    rules = re.findall(r"^(\w+)\.MARK\b", text, re.MULTILINE)
    assert {"merge", "batches"} <= set(rules)
    for rule in rules:
        assert f"hooks.by_mark[{rule}.MARK] = {rule}\n" in text
        for hook in hooks:
            assert f"{rule}.{hook} = {rule}.{hook} or default_hooks.{hook}\n" in text


def test_a_file_of_hooks_has_nothing_else_since_a_misspelt_one_is_called_by_nobody():
    hooks = set(re.findall(r"^function default_hooks\.(\w+)\(", assemble(), re.MULTILINE))
    for path in Path(lua.__file__).parent.glob("*/*_hooks.lua"):
        found = set(re.findall(r"^function \w+\.(\w+)\(", path.read_text(), re.MULTILINE))
        assert found <= hooks, path


def test_a_function_is_defined_once_since_hooks_are_in_the_files_of_their_rules():
    found = Counter(re.findall(r"^function ([\w.]+)\(", assemble(), re.MULTILINE))
    assert found["hooks.turn"] == 1
    assert [name for name, times in found.items() if times > 1] == []


#: Folders of rules, and the server functions and files that belong to a rule: all others know no rule by its name.
FOLDERS_OF_RULES = ("keys", "merging", "recurring", "types")
PARTS_OF_RULES = {
    "ack_batch_reports",
    "batch_calls",
    "declare_recurring",
    "decline_recurring",
    "due_recurring",
    "fire_recurring",
    "pause",
    "pause_recurring",
    "recurring",
    "remove_recurring",
    "repair",
    "resume",
    "split_batch",
}


def test_server_functions_claims_and_settings_ask_rules_through_the_registry_alone():
    folder = Path(lua.__file__).parent
    texts = "".join(path.read_text() for name in FOLDERS_OF_RULES for path in (folder / name).glob("*.lua"))
    rules = {*re.findall(r"^function (\w+)\.", texts, re.MULTILINE), "max_pending"} - {"hooks"}
    uses_rule = re.compile(rf"^(?!\s*--).*(?<![\w.])({'|'.join(sorted(rules))})\.\w", re.MULTILINE)
    assert uses_rule.search("    if gate.reevaluate(its_key) then")
    others = [path for name in ("functions", "base", "workers", "matching") for path in (folder / name).glob("*.lua")]
    section = re.compile(r"^-- (\w+): ((?s:.*?))(?=^-- \w+: |\Z)", re.MULTILINE)
    parts = [part for path in others for part in section.findall(path.read_text())]
    assert len(parts) > len(others)
    used = {name: uses_rule.findall(text) for name, text in parts if name not in PARTS_OF_RULES}
    assert {name: rules for name, rules in used.items() if rules} == {}


@pytest.mark.parametrize("by_script", [False, True])
def test_an_arrow_that_brings_no_job_runs_on_a_full_server(redis_client, by_script):
    fleet = ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
    if by_script:
        fleet.scheduler.way = fleet.scheduler.library.by_script
    fleet.join("worker", "pdf")
    redis_client.config_resetstat()
    redis_client.config_set("maxmemory", "1")
    try:
        for name in set(FUNCTION_NAMES) - set(BRING_JOBS):
            its = server_function(name)
            # Whatever these arguments mean to the arrow: the server lets it run.
            with suppress(redis.ResponseError):
                fleet.scheduler._attempt([(its, its.arguments(**dict.fromkeys(its.names, "0")))])
            refused = [each["rejected_calls"] for each in _calls(redis_client)]
            assert not any(refused), name
        with pytest.raises(redis.ResponseError, match="maxmemory"):
            fleet.publish("job", "pdf")
    finally:
        redis_client.config_set("maxmemory", "0")


def _calls(client):
    stats = client.info("commandstats")
    return [stats[name] for name in ("cmdstat_fcall", "cmdstat_evalsha") if name in stats]


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_full_server_takes_a_release_whether_or_not_it_ends_something(redis_client, has_ended):
    fleet = ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
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
    with pytest.raises(TypeError, match=re.escape("leave takes ('worker',), got: ('wroker',)")):
        server_function("leave").arguments(wroker="w")
    with pytest.raises(TypeError, match="takes nothing after"):
        server_function("leave").arguments(worker="w", rest=["more"])


def test_the_header_of_a_function_names_the_values_of_its_reply(redis_client):
    assert server_function("tick").reply[7:] == ("{list, ...}", "unfilled", "now", "ticked")
    assert server_function("publish").reply == ("state", "unfilled", "served", "state", "served")
    assert server_function("ack").reply == ()
    scheduler = FakeClockScheduler(redis_client, Keys())
    for name in ("heartbeat", "leave", "recover", "purge", "tick", "resume", "configure", "requeue", "sync", "revoke"):
        call = function_call(name, **dict.fromkeys(server_function(name).names, "1"))
        (reply,) = scheduler._attempt([call])
        assert len(reply) == len(call[0].reply), name
        place = call[0].reply.index("unfilled") if "unfilled" in call[0].reply else None
        assert place is None or reply[place] == b"", name


@pytest.mark.parametrize("by_script", [False, True])
def test_a_server_that_lost_the_library_is_given_it_again(redis_client, by_script):
    fleet = ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
    if by_script:
        fleet.scheduler.way = fleet.scheduler.library.by_script

    def lose():
        redis_client.script_flush()
        redis_client.function_flush()

    fleet.publish("job", "pdf")
    lose()
    fleet.join("worker", "pdf")
    (claim,) = fleet.inbox("worker")
    lose()
    fleet.scheduler.release_and_claim("worker", acks=[(claim.job_id, claim.fence)], ends=[], sequence=1, inline=True)
    lose()
    fleet.sequence = 1
    assert fleet.end("worker", claim) == []
    assert fleet.state("job") == "done"


@pytest.mark.parametrize(
    "reply",
    [
        "NOSCRIPT No matching script.",
        "ERR Function not found",  # the second time in a row: lost again
        *passing_errors.PASSING,
    ],
)
def test_what_a_server_says_of_a_state_that_will_pass_is_an_error_of_the_connection(redis_client, monkeypatch, reply):
    def answer(*_):
        raise BaseParser.parse_error(reply)

    monkeypatch.setattr(redis_client, "execute_command", answer)
    with pytest.raises(redis.ConnectionError):
        Scheduler(redis_client, Keys()).tick()


def test_python_and_lua_spell_the_same_keys(redis_client):
    keys = Keys(global_keyprefix="p:", namespace="n", cohort="c")
    spelled = {
        name: f"key.{name}" + (f"({', '.join(map(repr, 'xyz'[: template.count('%s')]))})" if "%s" in template else "")
        for name, (template, _, _) in KEYS.items()
    }
    table = ", ".join(f'"{name}", {spelling}' for name, spelling in spelled.items())
    modules = (
        "local key, call, memo, last_use, idle_libraries, protocol = {}, {}, {}, {}, {}, { MOST_KEPT = 9 }\n"
        + Path(lua.__file__).with_name("base").joinpath("call.lua").read_text()
    )
    found = redis_client.eval(
        f"{modules}{generated.generated_modules()['key']}key.begin(KEYS[1])\nreturn {{ {table} }}",
        1,
        keys.base,
    )
    of_lua = dict(zip(map(bytes.decode, found[::2]), map(bytes.decode, found[1::2]), strict=True))
    assert of_lua == {name: keys.key(name, *"xyz"[: template.count("%s")]) for name, (template, _, _) in KEYS.items()}


def test_braces_would_break_the_hash_tag():
    with pytest.raises(SettingError, match="namespace must be a str that holds no braces"):
        Keys(namespace="a{b}")


def test_a_full_server_refuses_a_publish_whole_and_still_releases(redis_client):
    fleet = ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
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
