"""The rules of `celery affinity check`: from plain facts to findings."""

from dataclasses import replace
from datetime import UTC, datetime
from functools import cache

import pytest
from celery import Celery, Task

from celery_affinity import Affinity, Exclusive, Merge
from celery_affinity.check import LEVELS, Facts, Level, check
from celery_affinity.check import app as app_module
from celery_affinity.check.facts import (
    AppFacts,
    ClockStepSeen,
    FleetFacts,
    JobLeftToCelery,
    MemberFacts,
    OtherCohortMap,
    ResultFacts,
    ServerFacts,
    WorkerAnswer,
    gather_app,
)
from celery_affinity.cli.check import exit_code
from celery_affinity.reports.blockers import ReservedSlots
from celery_affinity.reports.status import Status, TypeStatus, WorkerStatus
from celery_affinity.reports.stock_messages import StockQueue
from celery_affinity.reports.tenants import TenantStatus
from celery_affinity.reports.type_limits import PauseInForce
from celery_affinity.scheduler.runtime_settings import RuntimeSetting
from celery_affinity.schema.bounds import Bound
from celery_affinity.schema.keys import SCHEMA
from celery_affinity.versions import versions

from .conftest import OURS

VERSIONS = dict(versions())
INFO = {
    "valkey_version": "9.0.0", "maxmemory_policy": "noeviction", "used_memory": 1, "maxmemory": 1000, "aof_enabled": 1,
    "connected_clients": 1, "maxclients": 10_000, "role": "master",
}  # fmt: skip
ONE = MemberFacts("id1", "one@h", ("pdf",))
ANSWER = WorkerAnswer("one@h", ("pdf",), id="id1", app="shop", namespace="affinity", guard=True, versions=VERSIONS)


@pytest.fixture(autouse=True)
def _only_own_tasks(only_own_tasks, monkeypatch):
    monkeypatch.setattr(app_module, "HIREDIS_AVAILABLE", True)


def task_of(customer=None):
    pass


def shop(url="redis://localhost", tasks=(), **conf):
    """Return the facts of an app with task shop.render of type pdf, with *tasks* (name -> options) and *conf*."""
    app = Celery("shop", broker=url, set_as_current=False)
    app.conf.update({"broker_transport": OURS, **conf})
    for name, options in {"shop.render": {"affinity": "pdf"}, **dict(tasks)}.items():
        app.task(task_of, name=name, shared=False, **options)
    return replace(gather_app(app), cohort="default")


good_shop = cache(shop)


def app(*url, **conf):
    """Return the facts of a good server and fleet, with the app of `shop`."""
    facts = shop(*url, **conf) if url or conf else good_shop()
    return Facts(
        facts,
        ServerFacts(INFO),
        FleetFacts(facts, status(), members=(ONE,), answers=(ANSWER,), ticked_s=0.1),
    )


def refused(error):
    return Facts(AppFacts(Celery(set_as_current=False), conf_refused=error))


def status(**changes):
    return replace(Status(types=[], workers=[], scheduled=0, dead=0, counters={}), **changes)


def info(**changes):
    return replace(app(), server=ServerFacts({**INFO, **changes}))


def server(**changes):
    return replace(app(), server=ServerFacts(INFO, **changes))


def on_cluster(replicas, **conf):
    facts = app("redis-cluster://localhost", **conf)
    return replace(facts, server=ServerFacts({**INFO, "cluster_enabled": 1, "connected_slaves": replicas}))


def fleet(of=None, **changes):
    """Return the facts of `app`, or *of*, with *changes* in the facts of the fleet and in its status."""
    facts = of or app()
    of_status = {name: changes.pop(name) for name in list(changes) if hasattr(status(), name)}
    now = replace(facts.fleet.status, **of_status)
    return replace(facts, fleet=replace(facts.fleet, status=now, **changes))


def answers(**changes):
    return fleet(answers=(replace(ANSWER, **changes),))


def member(**changes):
    return fleet(members=(replace(ONE, **changes),))


def results(**found):
    return replace(app(), results=ResultFacts("redis://results/0", **found))


def type_(name, pending=0, **fields):
    row = {"on_demand": 0, "claimed": 0, "oldest_wait_s": None, "slots": 1, "free": 1, **fields}
    return TypeStatus(type=name, pending=pending, **row)


def waiting(**pending):
    return {"types": [type_(name, count) for name, count in pending.items()]}


def tenant(name, minimum=0, is_named=True, waiting=0):
    row = {"held": 0, "oldest_wait_s": None, "limit": None, "weight": 1, "preempting": 0}
    return TenantStatus(name=name, minimum=minimum, is_named=is_named, waiting=waiting, **row)


def slots(number):
    fields = {"types": ["pdf"], "free": 0, "draining": False, "last_heartbeat_s": 0.0, "withdrawn": []}
    return {"workers": [WorkerStatus(name="one@h", id="id1", slots=number, **fields)]}


def setting(name, value, conf=None, own=None, **fields):
    conf = value if conf is None else conf
    return RuntimeSetting(name=name, value=value, conf=conf, own=conf if own is None else own, **fields)


def in_list(queue, **oldest):
    return {queue: StockQueue(queue, [queue], 2, **oldest)}


def pause(kind, name="", why=""):
    return PauseInForce(kind=kind, name=name, since=0.0, until=None, why=why)


def full(effect, *pauses):
    return fleet(types=[type_("pdf", 12, bound=Bound(10, effect))], pauses=list(pauses))


def entry(**options):
    return {"nightly": {"task": "far.down", "schedule": 1.0, "options": options}}


def limited(*patterns, key="customer:{customer}"):
    tasks = {"shop.draw": {"affinity": Affinity("pdf", exclusive=key)}} if key else {}
    return app(tasks=tasks, affinity_limits=dict.fromkeys(patterns, 1))


def preemptible(**affinity):
    task = {"affinity": Affinity("pdf", preemptible=True, **affinity)}
    return app(tasks={"shop.batch": task}, task_acks_late=True)


def strategy(task, app, consumer):
    raise AssertionError("no worker runs here")


GATHERING = type("Gathering", (Task,), {"abstract": True, "Strategy": strategy})
ONCE = type("QueueOnce", (Task,), {"abstract": True, "__module__": "celery_once.tasks"})
MERGING = Affinity("pdf", merge=Merge("k", keep="last"))
STOCK = WorkerAnswer("stock@h", ("pdf", "other"), ours=False)
DRAWING = {"shop.draw": {"affinity": "drawing"}}
OF_CUSTOMER = "customer:{customer}"
HINTED = {"shop.answer": {"affinity": Affinity("pdf", locality="m:{customer}")}}
DUE = {"shop.soon": {"affinity": Affinity("pdf", start_within=30)}}
LIMITS_NOTHING = (setting("locality_bonus", 0), setting("placement", "idle"))
BY_SHARES = (setting("locality_bonus", 80), setting("placement", "idle"), setting("tenant_turns", "share"))


def in_two_cohorts():
    tasks = {
        "shop.draw": {"affinity": Affinity("gpu", exclusive=OF_CUSTOMER)},
        "shop.print": {"affinity": Affinity("pdf", exclusive=OF_CUSTOMER)},
    }
    return app(tasks=tasks, affinity_cohorts={"ml": {"types": ["gpu"]}})


def with_cohort(cohort, **changes):
    return replace(fleet(**changes), cohorts={"eu": cohort})


#: Each finding, with a function that makes facts which lead to it alone, and a word of its text.
CASES = [
    ("settings-names", lambda: refused("CELERY_TIMEZONE   -> timezone"), "mixes old and"),
    ("transport", lambda: app(broker_transport=None), "broker_transport is None"),
    ("broker-url", lambda: Facts(shop("amqp://localhost")), "got: 'amqp://localhost"),
    ("settings", lambda: app(affinity_hartbeat_interval=1), "affinity_hartbeat_interval"),
    ("option-misspelt", lambda: app(task_routes={"shop.render": {"affinty": "pdf"}}), "'affinty'"),
    ("not-sent", lambda: app(beat_schedule=entry(affinity=7)), "'nightly': affinity must be"),
    ("due-unscheduled", lambda: app(tasks=DUE, affinity_queues=["render"]), "their queue 'pdf' is not scheduled"),
    ("due-too-late", lambda: fleet(app(tasks=DUE, beat_schedule=entry(start_within=300)),
        settings=(setting("target_wait", 30.0),)), "of task shop.soon (30 s), beat_schedule entry 'nightly' (300 s)"),
    ("stretch-without-run-times", lambda: fleet(settings=(setting("stretch", 5),), run_times=0), "stretch is 5, but"),
    ("due-behind-older", lambda: fleet(app(tasks=DUE), waits_p99_s={"pdf": 400.5, "x": 256.0}),
        "of type 'pdf' that started in the last minutes waited more than 400 s, longer than affinity_target_wait (256"),
    ("not-recurring", lambda: app(affinity_recurring={"hh": {"task": "x", "stale_after": 60}}), "no task 'x'"),
    ("task-misspelt", lambda: app(task_routes={"shop.rendr": {"queue": "pdf"}}), "mean 'shop.render'?"),
    ("task-of-no-name", lambda: app(task_routes={"far.*": {"queue": "pdf"}}), "task_routes 'far.*' matches no task"),
    ("backend-unknown", lambda: results(unknown="redsi", meant="redis"), "did you mean redis://?"),
    ("backend-fails", lambda: results(fails="ImportError: pymongo"), "ImportError: pymongo."),
    ("backend-down", lambda: results(down="Connection refused"), "does not answer: Connection refused."),
    ("imports", lambda: app(include=("no.such.module",)), "ModuleNotFoundError: No module named 'no'"),
    ("unknown-option", lambda: app(broker_transport_options={"namespce": "x"}), "'namespce'"),
    ("void-options", lambda: app(broker_transport_options={"visibility_timeout": 9, "namespace": "x"}),
        ": visibility_timeout."),
    ("priority-order", lambda: app(tasks={"shop.draw": {"affinity": "pdf", "priority": 3}}), "task shop.draw"),
    ("priority-range", lambda: app(tasks={"shop.draw": {"affinity": Affinity("pdf", priority=255)}}),
        "255 counts as 10."),
    ("prefetch", lambda: app(worker_prefetch_multiplier=1), "worker_prefetch_multiplier = 1"),
    ("cancel-on-loss", lambda: app(worker_cancel_long_running_tasks_on_connection_loss=True), "cancels running tasks"),
    ("tls-unverified", lambda: app("rediss://localhost?ssl_cert_reqs=none"), "not verified"),
    ("results-never-expire", lambda: Facts(shop(result_backend="redis://localhost/1", result_expires=None)),
        "keeps results forever"),
    ("results-share-memory", lambda: app(result_backend="redis://localhost/1"), "publishing then fails"),
    ("merges-twice", lambda: app(tasks={"shop.plan": {"base": ONCE, "affinity": MERGING}}),
        "celery_once.QueueOnce refuses"),
    ("batches-small", lambda: app(tasks={"shop.load": {"base": GATHERING, "flush_every": 5_000, "affinity": "pdf"}}),
        "gathers 5,000 calls"),
    ("broker-down", lambda: Facts(good_shop(), down="Connection refused"), "Connection refused"),
    ("server-unknown", lambda: replace(app(), server=ServerFacts(refused="no permission")), "no permission"),
    ("server-too-old", lambda: replace(app(), server=ServerFacts(
        {name: value for name, value in INFO.items() if name != "valkey_version"} | {"redis_version": "6.2.14"})),
        "redis 6.2.14"),
    ("server-untested", lambda: info(valkey_version="7.2"), "valkey 7.2"),
    ("cluster", lambda: info(cluster_enabled=1), "names only this node"),
    ("cluster-results", lambda: Facts(shop("redis-cluster://one:7000", result_backend="redis://one:7000/0")),
        "takes for a server of its own"),
    ("cluster-no-replica", lambda: on_cluster(0, affinity_ingest=False), "no node takes over"),
    ("cluster-lists", lambda: on_cluster(1), "stock Celery cannot publish there"),
    ("replica", lambda: info(role="slave"), "replica"),
    ("schema", lambda: server(schema="7"), "schema 7"),
    ("cohorts-differ", lambda: replace(app(), fleet=None, other_map=OtherCohortMap("", "eu=eu.*", 3)),
        "is 'eu=eu.*' (revision 3), and this app has 'no cohorts'"),
    ("eviction", lambda: info(maxmemory_policy="allkeys-lru"), "allkeys-lru"),
    ("memory-full", lambda: info(used_memory=1000), "full"),
    ("memory-nearly-full", lambda: info(used_memory=950), "95% of maxmemory"),
    ("memory-unlimited", lambda: info(maxmemory=0), "no maxmemory"),
    ("persistence-off", lambda: replace(info(), server=ServerFacts({**INFO, "aof_enabled": 0}, save="")),
        "every waiting job"),
    ("snapshots-only", lambda: replace(info(), server=ServerFacts({**INFO, "aof_enabled": 0}, save="3600 1")),
        "(3600 1)"),
    ("persistence-fails", lambda: info(rdb_last_bgsave_status="err"), "its snapshot"),
    ("connections-nearly-full", lambda: info(connected_clients=95, maxclients=100), "95 of at most 100"),
    ("clock-here", lambda: server(clock_here_s=-60.0), "60 s behind"),
    ("clock-stepped", lambda: server(stepped=ClockStepSeen(-3600.0, 120.0)), "went back by 3,600 s, 2 min ago"),
    ("remote-control", lambda: fleet(answers=(), not_asked="no permission"), "no permission"),
    ("no-workers", lambda: fleet(members=(), answers=()), "'affinity'"),
    ("stock-worker", lambda: fleet(answers=(ANSWER, STOCK)), "stock@h consumes pdf with"),
    ("worker-elsewhere", lambda: fleet(answers=(ANSWER, replace(ANSWER, id="id2", namespace="other"))), "'other'"),
    ("worker-mute", lambda: fleet(answers=()), "one@h"),
    ("worker-silent", lambda: member(last_heartbeat_s=20), "20 s ago"),
    ("worker-stalled", lambda: member(stalled=True), "one@h is blocked"),
    ("worker-idle", lambda: fleet(members=(ONE, MemberFacts("id2", "two@h", ("celery",))), answers=(
        ANSWER, replace(ANSWER, name="two@h", id="id2", queues=("celery",)))), "two@h serves celery"),
    ("namesakes", lambda: fleet(members=(ONE, replace(ONE, id="id2")), answers=(ANSWER, replace(ANSWER, id="id2"))),
        "2 live"),
    ("no-guard", lambda: answers(guard=False), "one@h"),
    ("affinity-versions", lambda: answers(versions={**VERSIONS, "celery_affinity": "0.0"}), "0.0 on one@h"),
    ("versions", lambda: answers(versions={**VERSIONS, "python": "0.1"}), "0.1 on one@h"),
    ("clock-worker", lambda: answers(clock_ahead_s=3600.0), "3,600 s ahead"),
    ("type-waits", lambda: fleet(**waiting(drawing=3)), "3 job(s) of type 'drawing'"),
    ("left-to-celery", lambda: fleet(left_to_celery=(JobLeftToCelery("job-1", "pdf", "its body must be JSON"),)),
        "cannot run job-1 of type 'pdf': its body must be JSON. They take no job of the type"),
    ("type-unserved", lambda: app(tasks=DRAWING), "'drawing', which task shop.draw"),
    ("type-misspelt", lambda: app(tasks={"shop.draw": {"affinity": "Pdf"}}), "'Pdf', which task shop.draw declares"),
    ("bound-of-no-type", lambda: app(affinity_max_pending={"pfd": 9}), "affinity_max_pending['pfd'] matches no type"),
    ("reserve-of-no-type", lambda: app(affinity_reserve={"pfd": {"queued": 1}, "p*": {"queued": 1}}),
        "affinity_reserve['pfd'] matches no type"),
    ("limit-of-no-type", lambda: limited("type:pfd", "type:pdf"), "limits type 'pfd'"),
    ("limit-of-no-key", lambda: limited("custmer:*", "customer:7"), "affinity_limits['custmer:*'] matches no key"),
    ("bound-full", lambda: full("refuse", pause("type", "pdf", "db")),
        "raise QueueFull. No job of the type starts, because type 'pdf' is paused: db."),
    ("tenants-promised-too-much", lambda: fleet(tenants=[tenant("acme", 2), tenant("big", 2)], **slots(3)),
        "promises 4 slots in all (min)"),
    ("tenant-misspelt", lambda: fleet(tenants=[tenant("acmee"), tenant("acme", is_named=False, waiting=1)]),
        "for 'acmee', which has no waiting or running job"),
    ("tenant-not-filled", lambda: app(task_routes={"shop.re*": {"affinity": Affinity(tenant="{x}")}}),
        "task_routes 'shop.re*': tenant \"{x}\": task shop.render has no argument 'x'"),
    ("tenant-without-value", lambda: app(tasks={"shop.mail": {"affinity": Affinity("pdf", tenant="{customer}:x")}}),
        'task shop.mail: tenant "{customer}:x" has no value in calls of task shop.mail that leave {customer} out'),
    ("hints-without-effect", lambda: fleet(app(tasks=HINTED), settings=LIMITS_NOTHING),
        "Jobs of task shop.answer have hints (locality=), which change nothing: affinity_locality_bonus is 0, and"),
    ("preemptible-without-tenant", preemptible, "Task shop.batch has preemptible=True,"),
    ("preemptible-not-stopped", lambda: fleet(preemptible(tenant="batch"), tenants=[tenant("acme", 1)],
        members=(replace(ONE, stops=frozenset({"shop.draw"})),), **slots(2)), "cannot be stopped on one@h: no task"),
    ("key-in-cohorts", in_two_cohorts,
        "'customer:*': shop.draw (ml), shop.print (default). Each cohort counts separately, so"),
    ("key-used-in-cohorts", lambda: with_cohort(
        fleet(keys_in_use=frozenset({"printer", "another"})), keys_in_use=frozenset({"printer", "own"})),
        "have these keys: 'printer' (default, eu)."),
    ("cohort-down", lambda: with_cohort(Facts(good_shop(), down="Connection refused")),
        "Cohort 'eu' does not answer correctly: Connection refused."),
    ("stock-messages", lambda: fleet(stock_messages=in_list("drawing")), "queue 'drawing'"),
    ("stock-producer", lambda: fleet(stock_messages=in_list("pdf")), "queue 'pdf'"),
    ("nobody-ticks", lambda: fleet(ticked_s=60.0, scheduled=4), "not for 60 s"),
    ("dead-letters", lambda: fleet(dead=2), "2 job(s)"),
    ("unserved", lambda: fleet(counters={"unserved": 5}), "5 job(s)"),
    ("reserve-too-large", lambda: fleet(types=[type_("pdf", reserves=[
        ReservedSlots(type="pdf", of_class="queued", for_whom="other jobs", kept=4, live=4)])]), "keeps 4"),
    ("settings-differ", lambda: fleet(settings=(setting("rarity", "free", own="capacity"),)), "'capacity' in this"),
    ("settings-changed", lambda: fleet(settings=(setting("rarity", "free", "capacity"),)), "is 'free', changed"),
    ("settings-damaged", lambda: fleet(settings=(setting("rarity", "free", damaged_s=1.0),)), "the value of app.conf"),
]  # fmt: skip


def test_kombu_queue_without_a_consuming_worker_is_an_error():
    def facts(**changes):
        return fleet(app(affinity_queues=["pdf"]), stock_messages=in_list("mail"), **changes)

    (finding,) = check(facts())
    assert finding.id == "stock-messages"
    assert "which affinity_queues leaves to kombu" in finding.what
    assert ids(facts(answers=(replace(ANSWER, queues=("pdf", "mail")),))) == []
    assert ids(facts(answers=(), not_asked="E")) == ["remote-control"]


def test_unserved_list_is_reported_with_its_oldest_message():
    def oldest(**message):
        (finding,) = check(fleet(stock_messages=in_list("celery", **message)))
        return finding.what

    assert "no worker serves it (the oldest: shop.render). Calls" in oldest(oldest_task="shop.render")
    assert "(the oldest: shop.render, 2 min old)" in oldest(oldest_task="shop.render", oldest_s=120.0)
    assert "(the oldest: a task without a readable name, 2 min old)" in oldest(oldest_s=120.0)
    assert "no worker serves it. Calls" in oldest()
    unsure = check(fleet(stock_messages=in_list("celery"), answers=(), not_asked="E"))
    assert "no worker with this transport serves it" in unsure[0].what


def test_workers_are_not_queried_if_the_server_is_full():
    facts = replace(fleet(answers=(), not_asked="96% of its maxmemory"), server=info(used_memory=960).server)
    (finding,) = [each for each in check(facts) if each.id == "remote-control"]
    assert "were not queried (96% of its maxmemory, and would refuse their answers)" in finding.what
    assert "Free memory" in finding.todo
    assert not info(used_memory=940).server.has_no_room_for_replies
    assert not info(used_memory=940, maxmemory=0).server.has_no_room_for_replies


def ids(facts):
    return [finding.id for finding in check(facts)]


def test_healthy_fleet_has_no_finding():
    assert check(app()) == []


def test_each_case_gives_exactly_its_finding():
    found = {id_: check(make()) for id_, make, _ in CASES}
    assert {id_: [finding.id for finding in findings] for id_, findings in found.items()} == {
        id_: [id_] for id_, _, _ in CASES
    }
    for id_, _, word in CASES:
        (finding,) = found[id_]
        assert word in finding.what, id_
        assert finding.todo
        assert finding.level == LEVELS[id_]


def test_missing_fast_parser_is_a_note(monkeypatch):
    monkeypatch.setattr(app_module, "HIREDIS_AVAILABLE", False)
    (finding,) = check(app())
    assert (finding.id, finding.level) == ("hiredis", Level.NOTE)
    assert "not installed" in finding.what


@pytest.mark.parametrize(
    "make",
    [
        lambda: Facts(good_shop(), down="E."),
        lambda: replace(app(), app=replace(good_shop(), not_imported="E.")),
        lambda: Facts(good_shop(), results=ResultFacts("redis://results/0", fails="E.")),
        lambda: refused("E."),
        lambda: replace(app(), cohorts={"eu": Facts(good_shop(), down="E.")}),
    ],
)
def test_full_stop_of_an_error_is_not_doubled(make):
    whats = [finding.what for finding in check(make()) if "E." in finding.what]
    assert whats
    assert not any("E.." in what for what in whats)


def test_unserved_jobs_suggest_the_cancel_command():
    (finding,) = check(fleet(**waiting(drawing=3)))
    assert "`celery -A ... affinity cancel --type drawing`" in finding.todo


@pytest.mark.parametrize("deadline", ["2030-01-01T00:00:00+00:00", datetime(2030, 1, 1, tzinfo=UTC)])
def test_beat_entry_has_a_deadline_in_seconds(deadline):
    (finding,) = check(app(beat_schedule=entry(deadline=deadline)))
    assert "'nightly': deadline must be seconds from the call, because it is made repeatedly, got: " in finding.what
    assert check(app(beat_schedule=entry(deadline=60))) == []


def test_every_finding_has_a_case():
    assert sorted([*(case[0] for case in CASES), "hiredis"]) == sorted(LEVELS)


def test_findings_of_one_level_keep_the_order_of_their_functions():
    order = list(LEVELS)
    assert order[:4] == ["settings-names", "transport", "broker-url", "settings"]
    assert order[-4:] == ["key-used-in-cohorts", "cohort-down", "preemptible-without-tenant", "preemptible-not-stopped"]
    assert order.index("hiredis") < order.index("backend-down") < order.index("broker-down")
    assert order.index("clock-stepped") < order.index("no-workers") < order.index("type-waits")


def test_findings_are_sorted_by_level():
    facts = app(worker_prefetch_multiplier=1)
    facts = replace(facts, server=ServerFacts({**INFO, "aof_enabled": 0, "role": "slave"}, save=""))
    assert ids(facts) == ["replica", "persistence-off", "prefetch"]


def test_exit_code_depends_on_level_and_strict():
    by_id = {id_: make for id_, make, _ in CASES}
    for found, strict, code in [
        ([], True, 0),
        (["prefetch"], True, 0),
        (["dead-letters"], False, 0),
        (["dead-letters"], True, 1),
        (["dead-letters", "eviction"], False, 2),
        (["eviction"], True, 2),
    ]:
        findings = [finding for id_ in found for finding in check(by_id[id_]())]
        assert exit_code(findings, strict) == code, found


def test_set_of_error_findings_is_fixed():
    """A level changes only by decision: pipelines stop at errors."""
    assert {id_ for id_, level in LEVELS.items() if level is Level.ERROR} == {
        "transport", "broker-url", "settings", "option-misspelt", "not-recurring", "not-sent", "imports",
        "broker-down",
        "server-too-old", "replica", "schema", "eviction", "memory-full", "persistence-fails", "type-waits",
        "stock-messages", "nobody-ticks", "settings-names", "backend-unknown", "backend-fails", "backend-down",
        "cohorts-differ", "bound-full", "cluster-results", "tenant-not-filled", "cohort-down", "key-in-cohorts",
    }  # fmt: skip


def test_hints_have_no_effect_with_turns_by_share():
    (finding,) = check(fleet(app(tasks=HINTED), settings=BY_SHARES))
    assert finding.id == "hints-without-effect"
    assert "by shares" in finding.what


def test_harmless_facts_give_no_finding():
    priority = {"shop.draw": {"affinity": "pdf", "priority": 3}}
    two = replace(ANSWER, name="two@h", id="id2")
    for facts in [
        fleet(answers=(ANSWER, replace(STOCK, queues=("other",)))),  # another app's worker, on queues of its own
        fleet(answers=(ANSWER, replace(ANSWER, id="id2", app="bank", namespace="bank"))),  # a fleet of another app
        fleet(members=(ONE, MemberFacts("id2", "two@h", ("money",))), answers=(ANSWER, replace(two, app="bank"))),
        fleet(answers=(WorkerAnswer("one@h", ("pdf",), id="id1", versions=VERSIONS),)),  # guard and clock unknown
        app(tasks=priority, affinity_priority_order="lower-first"),
        app(broker_transport_options={"something_of_a_later_kombu": 1}),
        fleet(members=(replace(ONE, age_s=2.0),), ticked_s=None, scheduled=1),  # a fleet that has just begun
        fleet(members=(replace(ONE, age_s=2.0),), ticked_s=9000.0),  # or begun again
        info(maxmemory_policy="volatile-lru"),
        server(schema=str(SCHEMA)),
        replace(app(), server=ServerFacts({**INFO, "redis_version": "7.0.0"})),
        server(clock_here_s=0.9),
        answers(clock_ahead_s=-0.9),
        member(last_heartbeat_s=11.0),
        app(broker_transport_options={"visibility_timeout": 9}, worker_prefetch_multiplier=1, affinity_queues=["pdf"]),
        fleet(members=(ONE, MemberFacts("id2", "two@h", ())), answers=(  # drained, or with unscheduled queues
            ANSWER, replace(two, queues=("mail",)))),
        fleet(answers=(ANSWER, replace(STOCK, queues=("mail",))), stock_messages=in_list("mail")),  # stock workers'
        fleet(app(tasks=HINTED), settings=(setting("locality_bonus", 9), setting("placement", "idle"))),
        fleet(app(tasks=HINTED), settings=(setting("locality_bonus", 0), setting("placement", "weighted"))),
        fleet(settings=LIMITS_NOTHING),
        fleet(app(tasks=DUE), waits_p99_s={"pdf": 256.0}, settings=(setting("target_wait", 256.0),)),
        fleet(waits_p99_s={"pdf": 1000.0}),  # no job has a due time
        fleet(settings=(setting("stretch", 5),), run_times=1),
        fleet(settings=(setting("stretch", 0),), run_times=0),
        app(tasks=DUE, affinity_queues=["pdf"]),
        fleet(tenants=[tenant("acme", 1)], **slots(2)),
        fleet(app(tasks={"shop.batch": {"affinity": Affinity("pdf", tenant="batch")}}), tenants=[tenant("acme", 1)],
            members=(replace(ONE, stops=frozenset()),), **slots(2)),
        replace(app(), fleet=None),
    ]:  # fmt: skip
        assert ids(facts) == [], facts


def test_fleet_without_workers_has_no_finding_per_type():
    assert ids(fleet(members=(), answers=())) == ["no-workers"]
    assert ids(fleet(members=(), answers=(), **waiting(pdf=1))) == ["type-waits", "no-workers"]


def test_waiting_type_is_not_also_unserved():
    assert ids(fleet(app(tasks=DRAWING), **waiting(drawing=1))) == ["type-waits"]


def test_memory_without_maxmemory_is_compared_with_the_machine():
    facts = info(maxmemory=0, used_memory=95, total_system_memory=100)
    assert ids(facts) == ["memory-nearly-full", "memory-unlimited"]


def test_cohort_findings_omit_a_shared_server():
    cohort = fleet(**waiting(drawing=1), answers=())
    for run_id, expected in (("one", ["type-waits"]), ("other", ["type-waits", "eviction"])):
        there = ServerFacts({**INFO, "maxmemory_policy": "allkeys-lru", "used_memory": 2}, run_id=run_id)
        facts = replace(server(run_id="one"), cohorts={"eu": replace(cohort, server=there)})
        assert ids(facts) == expected
        assert all(finding.what.startswith("Cohort 'eu': ") for finding in check(facts))


def test_invalid_transport_and_namespace_are_errors():
    (transport,) = check(app(broker_transport="celery_affinity:transport"))
    assert (transport.id, transport.level) == ("transport", Level.ERROR)
    assert "which is not a transport: the name leads to <module" in transport.what
    (keys,) = check(app(broker_transport_options={"namespace": "{x}"}))
    assert (keys.id, keys.level) == ("settings", Level.ERROR)
    assert "namespace must be a str that holds no braces" in keys.what


@pytest.mark.parametrize(("meant", "declared", "differs"), [
    ("pdf", "PDF", "case or blanks"), ("pdf", "p df", "case or blanks"), ("pdf", "pfd", "one letter"),
    ("video", "vidoe", "one letter"), ("video", "vdeo", "one letter"), ("report", "reports", "one letter"),
    ("image-resize", "image_resize", "one letter"), ("image-resize", "image-resise", "one letter"),
])  # fmt: skip
def test_type_differing_in_one_letter_is_misspelt(meant, declared, differs):
    (finding,) = check(serving(meant, declared))
    assert finding.id == "type-misspelt"
    assert finding.what.startswith(f"Type {declared!r}, which task shop.draw declares, differs only in {differs} from")
    assert repr(meant) in finding.what


def serving(served, declared):
    facts = app(tasks={"shop.draw": {"affinity": declared}})
    return fleet(facts, members=(replace(ONE, types=("pdf", served)),))


@pytest.mark.parametrize(("served", "declared"), [
    ("gpu1", "gpu2"), ("queue_a", "queue_b"), ("csv", "tsv"), ("us", "eu"), ("v1.pdf", "v2.pdf"), ("pdf", "excel"),
])  # fmt: skip
def test_clearly_different_type_is_unserved(served, declared):
    assert ids(serving(served, declared)) == ["type-unserved"]


def test_worker_without_types_is_idle():
    idle = MemberFacts("id2", "two@h", ())
    answer = replace(ANSWER, name="two@h", id="id2", queues=())
    (finding,) = check(fleet(members=(ONE, idle), answers=(ANSWER, answer)))
    assert finding.what == "Worker two@h serves no type: it has nothing to do."


def test_jobs_of_a_misspelt_type_suggest_the_correct_type():
    (finding,) = check(fleet(**waiting(Pdf=3)))
    assert finding.what == "3 job(s) of type 'Pdf' wait, and no live worker serves it; did you mean 'pdf'?"


def test_stock_priority_steps_leave_the_priority_order_unclear():
    assert ids(app(broker_transport_options={"priority_steps": [0]})) == ["priority-order", "void-options"]


def test_backend_on_the_broker_server_is_not_reported_twice():
    def down(backend):
        results = ResultFacts(backend, down="Connection refused")
        return ids(Facts(shop(result_backend=backend), down="Connection refused", results=results))

    assert down("redis://results/0") == ["backend-down", "broker-down"]
    assert down("redis://127.0.0.1/0") == ["broker-down"]


@pytest.mark.parametrize(
    ("pattern", "made", "is_one"),
    [
        ("customer:*", OF_CUSTOMER, True),
        ("customer:7", OF_CUSTOMER, True),
        ("*", OF_CUSTOMER, True),
        ("*:7", OF_CUSTOMER, True),
        ("customer:*:x", "customer:{customer}:x", True),
        ("customer:*:x", "customer:{customer}:y", False),
        ("plan", "plan", True),
        ("plans", "plan", False),
        ("anything", Exclusive(lambda args, kwargs: "x"), True),
        ("anything", None, False),
    ],
)
def test_limit_pattern_must_match_keys_of_rules(pattern, made, is_one):
    assert ids(limited(pattern, key=made)) == ([] if is_one else ["limit-of-no-key"])
    assert ids(fleet(limited(pattern, key=None), limits_in_use=(pattern,))) == []


def test_full_bound_describes_its_effect_and_remedy():
    def of(effect, *pauses):
        (found,) = check(full(effect, *pauses))
        return found

    everything = pause("all")
    assert "further calls are refused, and raise QueueFull" in of("refuse").what
    assert "each further call drops the job that has waited longest" in of("drop-oldest").what
    assert "further calls are dropped" in of("drop-newest").what
    assert "Start more workers with -Q pdf" in of("refuse").todo
    assert "Start more workers" in of("refuse", pause("type", "mail"), pause("key", "pdf")).todo
    assert "affinity resume pdf`" in of("refuse", pause("type", "pdf"), everything).todo
    assert "affinity resume --all`" in of("refuse", everything).todo
    assert check(fleet(types=[type_("pdf", 9, bound=Bound(10, "refuse"))])) == []


def test_route_types_are_compared_with_task_types_without_workers():
    facts = app(
        tasks={"shop.all": {"affinity": "pdfs"}, "shop.draw": {"affinity": "pdf"}},
        task_routes={"shop.draw": {"queue": "pfd"}},
        beat_schedule=entry(queue="mail"),
    )
    for each in (Facts(facts.app, facts.server), fleet(facts, members=(), answers=())):
        (found,) = [finding for finding in check(each) if finding.id == "type-misspelt"]
        assert "'pfd', which task_routes 'shop.draw' declares, differs only in one letter from 'pdf'" in found.what
