"""Job fields in messages: the client and the scripts agree, and a refused message writes nothing."""

import dataclasses
import itertools
import math
import re

import pytest

from celery_affinity.errors import OptionError
from celery_affinity.lua.library import server_function
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.schema import job_record, rules_codec
from celery_affinity.schema.job_record import FIELDS, LEAST_FIELDS, NewJob
from celery_affinity.schema.keys import Keys
from tests.conformance.reference import model

from ..support.apps import app_for
from ..support.scripted_fleet import ScriptedFleet

GOOD = {
    **{name: "" if field.otherwise is None else str(field.otherwise) for name, field in FIELDS.items()},
    "id": "e1",
    "type": "pdf",
    "task_id": "t1",
    "task_name": "tests.task",
    "message": "m",
}
CHECKED = [name for name, field in FIELDS.items() if field.pattern]
#: Texts to try: whole fields first, then parts for the middle of a field; several lengths for bounded fields.
TEXTS = ["", " ", "%", "x", "0", "10", "11", "07", "-5", "--5", "5-", "1.0", "1e9", "0x10", "nan", "-inf", "1_0", "१"]
TEXTS += [
    "queued",
    "demand",
    "queued ",
    "Demand",
    "a:b c:d",
    "é",
    "\ud800",
    "\x00",
    "\x7f",
    "\u0085",
    "a\u2028b",
    "\U0001f600",
]
TEXTS += ["9" * number for number in (17, 18, 19, 400)] + ["-" + "9" * 17, "-" + "9" * 18, "i" * 255, "i" * 256]
TEXTS += [
    "key=a limit=1",
    "key=a%20b limit=12",
    "key=a limit=1 order=1",
    "key=a limit=2 order=1",
    "key=a rate=5/60000000",
]
TEXTS += [
    "key=a limit=0",
    "key=a limit=01",
    "key=a limit=1/5",
    "key=a rate=5",
    "key=a rate=5/0",
    "key=a",
    "key= limit=1",
]
TEXTS += [
    " key=a limit=1",
    "key=a limit=1 ",
    "key=a  limit=1",
    "key=a b limit=1",
    "key=a limit=1 order=0",
    "key=a:b limit=1",
]
TEXTS += [f"key={'k' * length} limit=1" for length in (255, 256)]
RATE = "key=rate%3Aa rate=5/60000000"
TENANT = "key=tenant%3Aa quota=settings"
TEXTS += [
    *(TENANT, f"{RATE} {TENANT}", f"key=a limit=1 {TENANT}", f"key=a limit=1 order=1 {RATE} {TENANT}"),
    *("key=tenant%3Aa quota=settings", f"{RATE} key=a limit=1 key=tenant%3Aa quota=settings"),
    *("key=tenant%3Aa quota=other", "key=tenant%3Aa quota=", "key=tenant%3Aa limit=1", "key=a quota=settings"),
    *(f"{TENANT} {TENANT}", f"{TENANT} {RATE}", f"{TENANT} key=a limit=1", f"{TENANT} order=1", f"{TENANT} "),
    *(f"{TENANT} preemptible=1", f"key=a limit=1 {TENANT} preemptible=1", f"{TENANT} preemptible=1 preemptible=1"),
    *(f"{TENANT} preemptible=0", f"{TENANT} preemptible=1 ", "key=a limit=1 preemptible=1", f"{RATE} preemptible=1"),
    *("preemptible=1", f"preemptible=1 {TENANT}", f"{TENANT} preemptible=1 {RATE}", f"{TENANT} order=1 preemptible=1"),
    *("key=rate%3Aa limit=1 order=1", "key=tenant%3Aa limit=1 order=1"),
    *("key=tenant%3Aa rate=5/60000000", f"merge=m most=2 bytes=1 {TENANT}", f"merge=m most=2 bytes=1 {RATE} {TENANT}"),
]
TEXTS += [
    f"{RATE} key=a limit=1",
    f"{RATE} key=a limit=1 order=1",
    f"{RATE}  key=a limit=1",
    f"{RATE} key=a limit=1 ",
    f"{RATE} key=a limit=0",
    f"{RATE} key=rate%3Ab limit=1",
    f"{RATE} {RATE}",
    f"{RATE} key=a rate=5/60000000",
    f"key=a rate=5/60000000 {RATE}",
    f"key=a limit=1 {RATE}",
    f"key=a limit=1 order=1 {RATE}",
    f"key=a limit=1 {RATE} ",
    f"key=a {RATE} limit=1",
    "key=a rate=5/60000000 key=a limit=1",
    "key=rate%3Aa rate=5 key=a limit=1",
    *(f"key=rate%3Aa rate=5/{period_us}" for period_us in ("", "0", "07")),
    "key=a limit=1 key=b limit=1",
    f"{RATE} key=a limit=1 key=b limit=1",
    f"key=rate%3A{'k' * 248} rate=1/1 key={'k' * 255} limit=1",
    f"key=rate%3A{'k' * 249} rate=1/1 key=k limit=1",
    f"key=rate%3Ak rate=1/1 key={'k' * 256} limit=1",
]
MERGE = "merge=a%20b most=2 bytes=1"
TEXTS += [MERGE, f"{MERGE} key=a limit=1", f"{MERGE} key=a limit=1 order=1", f"{MERGE} key=a rate=5/60000000"]
TEXTS += [
    f"{MERGE} {RATE} key=a limit=1",
    f"{MERGE} {RATE} key=a",
    f"{MERGE} {RATE} key=a limit=1 {RATE}",
    f"{MERGE} key=a limit=1 {RATE}",
]
TEXTS += [
    f"{MERGE} ",
    f"{MERGE} key=a",
    f"{MERGE}key=a limit=1",
    f" {MERGE}",
    f"{MERGE} merge=a",
    f"key=a limit=1 {MERGE}",
]
TEXTS += [
    f"merge=a most={most} bytes={size}" for most in ("1", "0", "02", "10", "9" * 19, "9" * 18) for size in ("5", "0")
]
TEXTS += [f"merge={'k' * length} most=9 bytes={'9' * other}" for length, other in ((255, 18), (256, 18), (255, 19))]
TEXTS += [
    f"{MERGE} {waits}{more}"
    for more in ("", " key=a limit=1", " wait=1/1", "x")
    for waits in ("wait=1/5", "wait=0/5", "wait=5/0", "wait=5", "wait=1/", "wait=1/2/3", "wait=-1/5", "wait=1.5/2")
]
TEXTS += [f"{MERGE} wait={'9' * length}/{'9' * other}" for length, other in ((15, 15), (16, 15), (15, 16))]
TEXTS += [f"wait=1/5 {MERGE}", f"{MERGE} key=a limit=1 wait=1/5"]
TEXTS += [
    *(
        "near=m",
        "near=",
        "near=a%20b key=a limit=1",
        f"near=m {TENANT}",
        f"near=m {RATE} {TENANT}",
        "near=m x",
        "near=a:b",
    ),
    *(f"{MERGE} near=m", f"{MERGE} near=m key=a limit=1", f"near=m {MERGE}", "key=a limit=1 near=m", "near=m near=n"),
    *(f"{MERGE} key=a limit=1 near=m", f"{MERGE}near=m", "near=mkey=a limit=1", "near=m ", " near=m", "near", "a~"),
    *("near=" + "k" * 255, "near=" + "k" * 256, "key=near=m limit=1", f"{MERGE} near=mkey=a limit=1"),
]
TEXTS += ["merge=a", "merge= most=2 bytes=1", "merge=a:b most=2 bytes=1", "a*", "a*!", "a!*", "a+", "a+!", "*", "!"]
TEXTS += [f"key=a rate={'9' * length}/{'9' * other}" for length, other in ((18, 18), (19, 18), (18, 19))]
TEXTS += [
    f"5 {words}" for words in ("w5 d5 s5", "d5 w5", "s5 d5", "w5 w5", "w-5", "d-5 s5", "s-5", "w5  d5", "x5", "w", "")
]
TEXTS += [f"{'9' * length} w{'9' * other}" for length, other in ((18, 17), (19, 17), (18, 18))]
TEXTS += [chr(code) for code in range(1, 128)] + [f"a{chr(code)}b" for code in range(128)] + ["a\n", "\na"]


def fields_of(job):
    """Return the fields of a job as the scripts receive them, by name."""
    return dict(zip(FIELDS, job.arguments, strict=True))


@pytest.mark.parametrize(
    ("job", "called"),
    [(NewJob, {"mode": "on_demand", "times": "delay_us"}), (model.Job, {"mode": "on_demand", "times": "enqueued_us"})],
    ids=["rules/job_fields", "reference/model"],
)
def test_job_class_has_each_field(job, called):
    missing = {called.get(name, name) for name in FIELDS} - {each.name for each in dataclasses.fields(job)}
    assert not missing, f"{job} lacks {missing}"


OTHERWISE = {name: field.otherwise for name, field in FIELDS.items() if field.otherwise is not None}


def test_job_arguments_follow_the_field_table():
    assert fields_of(
        NewJob(
            "i1",
            "a b",
            "m",
            on_demand=True,
            priority=3,
            delay_us=5,
            task_id="t 1",
            task_name="shop.render",
            expires_us=7,
            stamps=["of:1", "of:2"],
            rules="key=a limit=1",
        )
    ) == {
        **OTHERWISE,
        "id": "i1",
        "type": "a%20b",
        "mode": "demand",
        "priority": 3,
        "times": 5,
        "task_id": "t%201",
        "task_name": "shop.render",
        "expires_us": 7,
        "stamps": "of:1 of:2",
        "rules": "key=a limit=1",
        "message": "m",
    }
    assert fields_of(NewJob("i1", "pdf", "m")) == {"id": "i1", "type": "pdf", **OTHERWISE, "message": "m"}


def test_job_hash_keeps_the_fields_of_the_table(redis_client):
    job = NewJob("i1", "a b", "m", task_id="t 1", task_name="shop.render")
    scheduler = Scheduler(redis_client, Keys())
    scheduler.publish(job)
    kept = {field.kept: str(fields_of(job)[name]) for name, field in FIELDS.items() if field.kept}
    assert kept.items() <= scheduler.reader.hash("job", "i1").items()


def refused_field(client, arguments):
    values = [each.encode("utf-8", "surrogatepass") for each in arguments.values()]
    state, _, field = Scheduler(client, Keys())._attempt([(server_function("publish"), values)])[0]
    return field.decode() if state == 5 else None


def suffix_for(rules):
    """Return the id suffix of a job with these rules."""
    keys = rules.count("key=")
    of_keys = "$" if keys == 1 and "quota=" in rules else ("", "!", "&")[min(2, keys)]
    hint = "~" if "near=" in rules else ""
    return hint + ("+" + of_keys if "merge=" in rules else of_keys or ("" if hint else "!"))


@pytest.mark.slow_on_redis
def test_client_and_script_refuse_the_same_fields_without_writes(redis_client):
    number, refused = 0, set()
    for field in CHECKED:
        for text in TEXTS:
            number += 1
            arguments = {**GOOD, "id": f"e{number}{suffix_for(text) if field == 'rules' else ''}", field: text}
            before = redis_client.dbsize()
            found = refused_field(redis_client, arguments)
            assert found == job_record.first_invalid_field([*arguments.values()]), (field, text)
            if found:
                # An invalid id suffix is reported for the rules.
                assert found == field or (found == "rules" and text.endswith(rules_codec.ALL))
                assert redis_client.dbsize() == before
                refused.add(field)
    assert refused == set(CHECKED), f"jobs/fields.lua does not check {set(CHECKED) - refused}"


@pytest.mark.parametrize(
    "name",
    [
        b"\xff",
        b"a\xc3",
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xe2\xc3\xa9\x82\xac",
        b"\xf5\x80\x80\x80",
        b"\xf4\x90\x80\x80",
    ],
)
def test_task_name_with_invalid_utf_8_is_refused(redis_client, name):
    values = [*{**GOOD, "task_name": name}.values()]
    assert Scheduler(redis_client, Keys())._attempt([(server_function("publish"), values)]) == [[5, b"", b"task_name"]]
    assert redis_client.keys() == []


def test_refused_job_does_not_affect_the_others(redis_client):
    scheduler = Scheduler(redis_client, Keys())
    good, bad = NewJob("good", "pdf", "m"), NewJob("bad", "pdf", "m", priority=-5)
    assert [each.refused for each in scheduler.publish(bad, good, dataclasses.replace(bad, priority="0 1"))] == [
        "priority",
        None,
        "priority",
    ]
    assert scheduler.reader.existing_jobs(["good", "bad"]) == {"good"}
    with pytest.raises(OptionError, match="priority of a job must be a whole number from 0 to 10, got: -5"):
        scheduler.publish(bad)[0].check(bad)


def test_invocation_without_a_required_argument_writes_nothing(redis_client):
    with pytest.raises(Exception, match=f"{len(FIELDS)} arguments"):
        Scheduler(redis_client, Keys())._attempt(
            [(server_function("publish"), list(GOOD.values())[: LEAST_FIELDS - 1])]
        )
    assert redis_client.keys() == []


@pytest.mark.parametrize("fields", range(LEAST_FIELDS, len(FIELDS) + 1))
def test_trailing_fields_with_defaults_may_be_omitted(redis_client, fields):
    scheduler = Scheduler(redis_client, Keys())
    assert scheduler._attempt([(server_function("publish"), list(GOOD.values())[:fields])]) == [[1, b"", 0]]
    kept = {field.kept: str(field.otherwise) for field in FIELDS.values() if field.kept}
    assert scheduler.reader.hash("job", "e1") == kept | {
        "type": "pdf",
        "task": "t1",
        "name": "tests.task",
        "lane": "queued.0",
        "state": "pending",
        "enqueued": scheduler.reader.hash("job", "e1")["enqueued"],
    }


def test_client_omits_trailing_defaults():
    assert len(job_record.job_words(NewJob("i1", "pdf", "m").arguments)) == LEAST_FIELDS
    for last, value in (("priority", 1), ("rules", "merge=a most=2 bytes=9")):
        words = job_record.job_words(NewJob("i1", "pdf", "m", **{last: value}).arguments)
        assert [*FIELDS][len(words) - 1] == last


def test_client_names_the_invalid_field(subtests):
    invalid = [("priority", value) for value in (-5, "x", math.nan, math.inf, 1.5, True, None)]
    for field, value in (*invalid, ("type", "\ud800"), ("task_name", "a\ud800")):
        with subtests.test(field, value=repr(value)), pytest.raises(OptionError, match=field):
            NewJob("e1", **{"type": "pdf", "message": "m", field: value}).checked()


@pytest.fixture
def app(valkey):
    with app_for(valkey.url) as app:
        yield app


def test_message_with_invalid_values_is_refused_at_the_caller(app, valkey):
    with app.connection_for_write() as connection, connection.Producer() as producer:
        connection.default_channel.scheduler.tick()  # the first tick writes keys that every fleet has
        before = connection.default_channel.scheduler.client.dbsize()
        with pytest.raises(OptionError, match="priority"):
            producer.publish({}, routing_key="pdf", headers={"task": "t", "id": "1"}, priority="high")
        with pytest.raises(OptionError, match="task_name"):
            producer.publish({}, routing_key="pdf", headers={"task": "t\ud800", "id": "1"})
        assert connection.default_channel.scheduler.client.dbsize() == before


def test_valid_jobs_after_refused_ones_are_claimed(redis_client):
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    fleet.join("worker", "pdf", slots=3)
    fleet.scheduler.publish(*(NewJob(f"e{number}", "pdf", "m", priority=-number) for number in range(3)))
    assert fleet.jobs("worker") == ["e0"]


def test_all_fields_together_are_checked_like_each_alone():
    """A line break within a field must not be taken for the border between two fields."""
    good = fields_of(NewJob("id", "pdf", "", task_id="task", task_name="shop.render"))
    assert job_record.first_invalid_field([*good.values()]) is None
    odd = ("", " ", "a b", "a\npdf\nqueued\n1\n0\nt", "queued", "11", "-1", "1" * 19, "\n", "é", "x" * 300)
    for name, value in itertools.product(CHECKED, odd):
        arguments = {**good, name: value}
        one_by_one = next(
            (each for each in CHECKED if not re.fullmatch(FIELDS[each].pattern, str(arguments[each]))), None
        )
        assert job_record.first_invalid_field([*arguments.values()]) == one_by_one


def test_rules_require_the_matching_id_suffix(redis_client):
    key, merge = "key=a limit=1", "merge=b most=2 bytes=9"
    for job_id, rules in (
        ("a!", ""),
        ("a+", ""),
        ("a+!", ""),
        ("a", key),
        ("a+", key),
        ("a+!", key),
        ("a", merge),
        ("a!", merge),
        ("a+!", merge),
        ("a", f"{merge} {key}"),
        ("a+", f"{merge} {key}"),
        ("a!", f"{merge} {key}"),
        ("a~", ""),
        ("a~!", key),
        ("a", "near=m"),
        ("a!", f"near=m {key}"),
        ("a+~", f"{merge} near=m"),
    ):
        arguments = {**GOOD, "id": job_id, "rules": rules}
        assert refused_field(redis_client, arguments) == "rules"
        assert job_record.first_invalid_field([*arguments.values()]) == "rules"
    for job_id, rules in (
        ("a!", key),
        ("a+", merge),
        ("a+", f"{merge} wait=1/5"),
        ("a+!", f"{merge} {key}"),
        ("a+!", f"{merge} wait=1/5 {key}"),
        ("a~", "near=m"),
        ("a~!", f"near=m {key}"),
        ("a~+!", f"{merge} near=m {key}"),
    ):
        arguments = {**GOOD, "id": job_id, "rules": rules}
        assert refused_field(redis_client, arguments) is None
        assert job_record.first_invalid_field([*arguments.values()]) is None
