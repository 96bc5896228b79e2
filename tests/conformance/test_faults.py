"""The seeded faults can be tried: each one's text stands in its file. `make seeded-faults` tries them."""

import os
import subprocess
import sys

import pytest
import redis

from celery_affinity.lua.library import bound

from .faults import FAULTS, LUA, ROOT, Fault


def test_the_text_of_each_fault_stands_in_its_file_exactly_once():
    for fault in FAULTS:
        assert fault.broken() != fault.new


def test_a_script_with_a_fault_can_be_loaded(valkey):
    with redis.Redis.from_url(valkey.url) as client:
        for fault in FAULTS:
            source = fault.broken()
            assert client.eval("return (select(2, loadstring(ARGV[1])))", 0, source) is None, fault
            room, _, name = fault.file.partition("/")
            if room == "arrows":
                bound(name, source)


def test_a_test_that_a_fault_names_is_there():
    for file, _, test in (fault.found_by.partition("::") for fault in FAULTS if fault.found_by):
        assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text()


def test_a_text_that_is_gone_or_stands_there_twice_is_an_error():
    with pytest.raises(ValueError, match=r"arrows/ack\.lua must have this text once, not 0 times: gone"):
        Fault("arrows/ack", "gone", "").broken()
    with pytest.raises(ValueError, match=r"must have this text once, not \d+ times: local"):
        Fault("arrows/ack", "local", "").broken()


def test_no_fault_stands_twice():
    assert len(set(FAULTS)) == len(FAULTS)


#: Files of which no line can be wrong unnoticed, each with the reason.
WITHOUT_FAULTS = {
    "base/garbage": "how the server's Lua collects garbage: no reply and no key depends on that",
    "base/use": "when a library was called last: `tests/server/test_old_libraries.py` is about that",
    "base/kept": "what is kept could be worked out anew: no reply and no key depends on that",
}


def test_every_part_of_the_scripts_has_a_fault_or_a_reason_for_none():
    files = {path.relative_to(ROOT / LUA).with_suffix("").as_posix() for path in (ROOT / LUA).rglob("*.lua")}
    assert files - {fault.file for fault in FAULTS} == set(WITHOUT_FAULTS)


def test_the_program_that_tries_them_finds_one():
    words = ["-m", "tests.conformance.seeded_faults", "* MICRO / slots_that_fit"]
    run = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "CONFORMANCE_STEPS": "1000"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 of 1 faults were found" in run.stdout
