"""No change makes a server function more expensive unnoticed: its instructions and commands equal the recorded ones."""

import warnings

import pytest

from ..support.servers import EXECUTABLES
from .instructions.counter import build_of
from .instructions.functions import FLEETS
from .instructions.measuring import costs, differences
from .instructions.recorded import Cost, Recorded


class ComparedLessWarning(UserWarning):
    """Some comparisons are skipped."""


@pytest.mark.filterwarnings("default::tests.scheduler.test_instructions.ComparedLessWarning")
@pytest.mark.timeout(900)  # under valgrind, on a busy machine
@pytest.mark.parametrize("fleet", FLEETS)
def test_functions_cost_the_recorded_amount(fleet):
    recorded = Recorded()
    executable = _recorded_executable(recorded)
    found, not_compared = differences(fleet, executable, build_of(executable), recorded)
    if not_compared:
        warnings.warn(not_compared, ComparedLessWarning, stacklevel=1)
    assert not found, "\n".join(["", *found])


def _recorded_executable(recorded):
    executable = EXECUTABLES["redis"]
    if executable is None or recorded.instructions(build_of(executable)) is None:
        return None  # the build of Valkey is the build in the package that tests install
    return executable


#: Factor for a cluster node, which looks up the slot of each command's keys.
OF_A_CLUSTER = 1.08


@pytest.mark.timeout(900)
def test_cluster_node_runs_the_same_commands_at_similar_cost():
    recorded = Recorded()
    executable = _recorded_executable(recorded)
    on_server = recorded.instructions(build_of(executable)) or {}
    for name, cost in costs("one_type", executable, in_cluster=True).items():
        assert recorded.differences("cluster", {name: Cost(None, cost.commands)}) == []
        if cost.instructions and name in on_server:
            ratio = cost.instructions / on_server[name]
            print(f"{name}: {ratio:.3f} of a server's instructions")
            assert ratio <= OF_A_CLUSTER, name


def test_recorded_functions_are_the_measured_ones(redis_client):
    named = set()
    for fleet in FLEETS.values():
        redis_client.flushall()
        named |= {function.name for function in fleet(redis_client)}
    assert Recorded().names == named


@pytest.fixture
def recorded(tmp_path):
    found = Recorded(tmp_path / "recorded.json")
    found.record({"Redis 1": {"publish": Cost(1_000, {"hset": 1, "time": 1}), "ack": Cost(500, {})}})
    return Recorded(tmp_path / "recorded.json")


def measured(instructions, **commands):
    return {"publish": Cost(instructions, commands or {"hset": 1, "time": 1}), "ack": Cost(500, {})}


@pytest.mark.parametrize("instructions", [981, 1_000, 1_019])
def test_two_percent_are_accepted(recorded, instructions):
    assert recorded.differences("Redis 1", measured(instructions)) == []
    assert recorded.not_compared("Redis 1", measured(instructions)) == ""


@pytest.mark.parametrize(("instructions", "words"), [(1_022, "2.2% more"), (970, "3.0% fewer")])
def test_more_and_fewer_instructions_are_reported(recorded, instructions, words):
    line, how = recorded.differences("Redis 1", measured(instructions))
    assert line.startswith(f"publish: {instructions:,} instructions, {words} than the 1,000 ")
    assert "make instructions ARGS=--record" in how


def test_different_commands_are_named(recorded):
    line, _ = recorded.differences("Redis 1", measured(1_000, hset=2, hget=1))
    assert line == "publish: 3 commands, 2 are recorded (+1 hget, +1 hset, -1 time)"


def test_other_build_compares_only_commands_with_a_note(recorded):
    assert "no instructions are recorded of Redis 2, but of: Redis 1." in recorded.not_compared("Redis 2", measured(9))
    assert recorded.differences("Redis 2", measured(9)) == []
    assert len(recorded.differences("Redis 2", measured(9, hset=3))) == 2


def test_missing_valgrind_compares_only_commands_with_a_note(recorded):
    without = {name: Cost(None, cost.commands) for name, cost in measured(0).items()}
    assert recorded.not_compared("Redis 1", without).startswith("valgrind is not installed")
    assert recorded.differences("Redis 1", without) == []


def test_unrecorded_function_is_named(recorded):
    changed = {"tick": Cost(7, {}), **measured(1_000)}
    assert recorded.differences("Redis 1", changed)[:-1] == [
        "tick: 7 instructions, and none are recorded",
        "tick: 0 commands, and none are recorded",
    ]


def test_recording_drops_servers_that_were_not_measured(recorded):
    assert recorded.record({"Redis 2": measured(900)}) == ["Redis 1"]
    assert recorded.instructions("Redis 1") is None
    assert recorded.differences("Redis 2", measured(900)) == []
