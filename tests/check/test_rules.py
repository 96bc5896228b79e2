"""The rules of `celery affinity check`: from plain facts to findings."""

from dataclasses import replace

import pytest

from celery_affinity.check import LEVELS, Facts, Level, check
from celery_affinity.check.facts import (
    AppFacts,
    BackendFacts,
    ChangedSetting,
    ClockStepSeen,
    FleetFacts,
    FullBound,
    JobLeftToCelery,
    MemberFacts,
    OtherCohortMap,
    ResultFacts,
    ServerFacts,
    StatedName,
    TaskWithoutTenant,
    WorkerAnswer,
)
from celery_affinity.cli.check import exit_code
from celery_affinity.schema.keys import SCHEMA

VERSIONS = {"celery_affinity": "1.0", "celery": "5.7.0", "python": "3.12.1"}
APP = AppFacts(name="shop", versions=VERSIONS, declared={"pdf": ("task shop.render",)})
SERVER = ServerFacts(maxmemory=1000)
ONE = MemberFacts("id1", "one@h", ("pdf",))
ANSWER = WorkerAnswer("one@h", ("pdf",), id="id1", app="shop", namespace="affinity", guard=True, versions=VERSIONS)
FLEET = FleetFacts(members=(ONE,), answers=(ANSWER,), ticked_s=0.1)
GOOD = Facts(APP, SERVER, FLEET)


def app(**changes):
    return replace(GOOD, app=replace(APP, **changes))


def server(**changes):
    return replace(GOOD, server=replace(SERVER, **changes))


def on_cluster(app, **changes):
    return replace(GOOD, app=replace(app, cluster=True), server=replace(SERVER, cluster=True, **changes))


def fleet(**changes):
    return replace(GOOD, fleet=replace(FLEET, **changes))


def answers(**changes):
    return fleet(answers=(replace(ANSWER, **changes),))


def member(**changes):
    return fleet(members=(replace(ONE, **changes),))


def results(**found):
    return replace(GOOD, results=ResultFacts("redis://results/0", **found))


STOCK = WorkerAnswer("stock@h", ("pdf", "other"), ours=False)
IN_EU = replace(GOOD, fleet=replace(FLEET, keys_in_use=frozenset({"printer", "another"})))
CANNOT_STOP = replace(FLEET, slots=2, minima={"acme": 1}, members=(replace(ONE, stops=frozenset({"shop.draw"})),))
OWN_NOT_SERVED = {"pdf": ("task shop.render",), "drawing": ("task shop.draw",)}

HINTED = app(hinted=("task shop.answer",))
NEITHER = (ChangedSetting("locality_bonus", 0, 0, 0), ChangedSetting("placement", "idle", "idle", "idle"))
BY_SHARES = (
    ChangedSetting("locality_bonus", 80, 80, 80),
    NEITHER[1],
    ChangedSetting("tenant_turns", "share", "share", "share"),
)

#: Each finding, with facts that lead to it alone, and a word of its text.
CASES = [
    ("settings-names", Facts(AppFacts(conf_refused="E", renames={"CELERY_TIMEZONE": "timezone"})), "mixes old and"),
    ("transport", app(transport_is_ours=False, transport="None"), "broker_transport is None"),
    ("broker-url", Facts(replace(APP, url_refused="broker_url must begin with ...")), "broker_url must"),
    ("settings", app(refused=("affinity_x must be ...",)), "affinity_x must be"),
    ("option-misspelt", app(misspelt=("task shop.render: unknown option 'affinty'",)), "'affinty'"),
    ("not-sent", app(not_sent=("beat_schedule entry 'nightly': priority must be ...",)), "'nightly': priority must be"),
    ("not-recurring", app(not_recurring=("affinity_recurring['hh']: the app has no task 'x'",)), "no task 'x'"),
    ("task-misspelt", app(no_tasks=(StatedName("task_routes 'shop.rendr'", "shop.render"),)), "mean 'shop.render'?"),
    ("task-of-no-name", app(no_tasks=(StatedName("task_routes 'far.*'"),)), "task_routes 'far.*' matches no task"),
    ("backend-unknown", results(unknown="redsi", meant="redis"), "did you mean redis://?"),
    ("backend-fails", results(fails="ImportError: pymongo"), "ImportError: pymongo."),
    ("backend-down", results(down="Connection refused"), "does not answer: Connection refused."),
    ("imports", app(not_imported="ImportError: shop"), "ImportError: shop"),
    ("unknown-option", app(options=("namespce",), known_options=("namespace",)), "'namespce'"),
    ("void-options", app(options=("visibility_timeout", "namespace")), ": visibility_timeout."),
    ("priority-order", app(priorities=("task shop.render",), priority_order_is_set=False), "task shop.render"),
    ("priority-range", app(out_of_range=("task shop.render: priority 255 counts as 10",)), "255 counts as 10."),
    ("prefetch", app(void={"worker_prefetch_multiplier": 1}), "worker_prefetch_multiplier = 1"),
    ("cancel-on-loss", app(cancels_on_connection_loss=True), "cancels running tasks"),
    ("tls-unverified", app(tls_unverified=True), "not verified"),
    ("results-never-expire", Facts(replace(APP, backend=BackendFacts("redis://", None))), "keeps results for ever"),
    ("results-share-memory", app(backend=BackendFacts("redis://", 3600.0)), "publishing then fails"),
    ("merges-twice", app(merges_twice={"shop.plan": "celery_once.QueueOnce"}), "celery_once.QueueOnce refuses"),
    ("batches-small", app(small_batches={"shop.load": (5_000, 1_000)}), "gathers 5,000 calls"),
    ("hiredis", app(hiredis=False), "not installed"),
    ("broker-down", Facts(APP, down="Connection refused"), "Connection refused"),
    ("server-unknown", server(refused="no permission"), "no permission"),
    ("server-too-old", server(kind="redis", version=(6, 2, 14)), "redis 6.2.14"),
    ("server-untested", server(kind="valkey", version=(7, 2)), "valkey 7.2"),
    ("cluster", server(cluster=True), "names this node alone"),
    ("cluster-results", Facts(replace(APP, results_on_a_node=True)), "takes for a server of its own"),
    ("cluster-no-replica", on_cluster(replace(APP, ingests=False), replicas=0), "nobody takes over"),
    ("cluster-lists", on_cluster(APP, replicas=1), "stock Celery cannot publish there"),
    ("replica", server(replica=True), "replica"),
    ("schema", server(schema="7"), "schema 7"),
    ("cohorts-differ", replace(GOOD, fleet=None, other_map=OtherCohortMap("", "eu=eu.*", 3)),
        "is 'eu=eu.*' (revision 3), and this app has 'no cohorts'"),
    ("eviction", server(policy="allkeys-lru"), "allkeys-lru"),
    ("memory-full", server(used=1000), "full"),
    ("memory-nearly-full", server(used=950), "95% of maxmemory"),
    ("memory-unlimited", server(maxmemory=0), "no maxmemory"),
    ("persistence-off", server(aof=False, save=""), "every waiting job"),
    ("snapshots-only", server(aof=False, save="3600 1"), "(3600 1)"),
    ("persistence-fails", server(failing="snapshot"), "its snapshot"),
    ("connections-nearly-full", server(clients=95, max_clients=100), "95 of at most 100"),
    ("clock-here", server(clock_here_s=-60.0), "60 s behind"),
    ("clock-stepped", server(stepped=ClockStepSeen(-3600.0, 120.0)), "went back by 3,600 s, 2 min ago"),
    ("remote-control", fleet(answers=(), not_asked="no permission"), "no permission"),
    ("no-workers", fleet(members=(), answers=()), "'affinity'"),
    ("stock-worker", fleet(answers=(ANSWER, STOCK)), "stock@h consumes pdf with"),
    ("worker-elsewhere", fleet(answers=(ANSWER, replace(ANSWER, id="id2", namespace="other"))), "'other'"),
    ("worker-mute", fleet(answers=()), "one@h"),
    ("worker-silent", member(last_heartbeat_s=20), "20 s ago"),
    ("worker-stalled", member(stalled=True), "one@h stands still"),
    ("worker-idle", fleet(members=(ONE, MemberFacts("id2", "two@h", ("celery",))), answers=(
        ANSWER, replace(ANSWER, name="two@h", id="id2", queues=("celery",)))), "two@h serves celery"),
    ("namesakes", fleet(members=(ONE, replace(ONE, id="id2")), answers=(ANSWER, replace(ANSWER, id="id2"))), "2 live"),
    ("no-guard", answers(guard=False), "one@h"),
    ("affinity-versions", answers(versions={**VERSIONS, "celery_affinity": "2.0"}), "2.0 on one@h"),
    ("versions", answers(versions={**VERSIONS, "python": "3.11.7"}), "3.11.7 on one@h"),
    ("clock-worker", answers(clock_ahead_s=3600.0), "3,600 s ahead"),
    ("type-waits", fleet(pending={"drawing": 3}), "3 job(s) of type 'drawing'"),
    ("left-to-celery", fleet(left_to_celery=(JobLeftToCelery("job-1", "pdf", "its body must be JSON, got: yaml"),)),
        "cannot run job-1 of type 'pdf': its body must be JSON, got: yaml. They take no job of the type"),
    ("type-unserved", app(declared=OWN_NOT_SERVED), "'drawing', which task shop.draw declares"),
    ("type-misspelt", app(declared={"pdf": ("task shop.render",), "Pdf": ("task shop.draw",)}), "'Pdf', which task"),
    ("bound-of-no-type", app(bounds=("pfd",)), "affinity_max_pending['pfd'] matches no type"),
    ("reserve-of-no-type", app(reserves=("pfd", "p*")), "affinity_reserve['pfd'] matches no type"),
    ("limit-of-no-type", app(limits=("type:pfd", "type:pdf")), "limits type 'pfd'"),
    ("limit-of-no-key", app(limits=("custmer:*", "customer:7"), key_patterns=("customer:*",)),
        "affinity_limits['custmer:*'] matches no key"),
    ("bound-full", fleet(full=(FullBound("pdf", 10, 10, "refuse", ("type 'pdf' is paused: db",)),)),
        "raise QueueFull. No job of the type starts, because type 'pdf' is paused: db."),
    ("tenants-promised-too-much", fleet(slots=3, minima={"acme": 2, "big": 2}), "promises 4 slots in all (min)"),
    ("tenant-misspelt", fleet(tenants_misspelt={"acmee": "acme"}), "for 'acmee', of whom no job waits or runs"),
    ("tenant-not-filled", app(no_tenant=(TaskWithoutTenant("shop.mail", "task_routes 'shop.*'", "{x}", complaint="E"),)
    ),
        "task_routes 'shop.*': E. Its calls fail,"),
    ("tenant-without-value", app(no_tenant=(TaskWithoutTenant("shop.mail", "task shop.mail", "{x}:{y}", ("x", "y")),)),
        'task shop.mail: tenant "{x}:{y}" has no value in calls of task shop.mail that leave {x}, {y} out'),
    ("hints-without-effect", replace(HINTED, fleet=replace(HINTED.fleet, settings=NEITHER)),
        "Jobs of task shop.answer have hints (locality=), which change nothing: affinity_locality_bonus is 0, and"),
    ("preemptible-without-tenant", app(preemptible={"shop.render": False}), "Task shop.render says preemptible=True,"),
    ("preemptible-not-stopped", replace(app(preemptible={"shop.render": True}), fleet=CANNOT_STOP),
        "is not stopped on one@h: no task"),
    ("key-in-cohorts", app(shared_keys={"customer:*": {"shop.draw": "ml", "shop.render": "default"}}),
        "'customer:*': shop.draw (ml), shop.render (default). Each cohort counts by itself, so"),
    ("key-used-in-cohorts", replace(fleet(keys_in_use=frozenset({"printer", "own"})), cohorts={"eu": IN_EU}),
        "have these keys: 'printer' (default, eu)."),
    ("cohort-down", replace(GOOD, cohorts={"eu": Facts(APP, down="Connection refused")}),
        "Cohort 'eu' does not answer correctly: Connection refused."),
    ("stock-messages", fleet(stock_messages={"drawing": 2}), "queue 'drawing'"),
    ("stock-producer", fleet(stock_messages={"pdf": 2}), "queue 'pdf'"),
    ("nobody-ticks", fleet(ticked_s=60.0, scheduled=4), "not for 60 s"),
    ("dead-letters", fleet(dead=2), "2 job(s)"),
    ("unserved", fleet(unserved=5), "5 job(s)"),
    ("reserve-too-large", fleet(reserves=("affinity_reserve keeps 4 slots free",)), "keeps 4 slots free"),
    ("settings-differ", fleet(settings=(ChangedSetting("rarity", "free", "free", "capacity"),)), "'capacity' in this"),
    ("settings-changed", fleet(settings=(ChangedSetting("rarity", "free", "capacity", "capacity"),)),
        "is 'free', changed"),
    ("settings-damaged", fleet(settings=(ChangedSetting("rarity", "free", "free", "free", True),)),
        "the value of app.conf"),
]  # fmt: skip


def test_lists_of_queues_left_to_kombu_are_an_error_only_if_no_worker_that_answered_has_the_queue():
    lists = {"stock_messages": {"mail": 2}, "left_to_kombu": frozenset({"mail"})}
    (finding,) = check(fleet(**lists))
    assert finding.id == "stock-messages"
    assert "which affinity_queues leaves to kombu" in finding.what
    assert ids(fleet(**lists, answers=(replace(ANSWER, queues=("pdf", "mail")),))) == []
    assert ids(fleet(**lists, answers=(), not_asked="E")) == ["remote-control"]


def test_list_that_no_worker_serves_is_named_with_its_oldest_message():
    (finding,) = check(fleet(stock_messages={"celery": 2}, oldest={"celery": "shop.render"}))
    assert "no worker serves it (the oldest: shop.render)" in finding.what
    unsure = check(fleet(stock_messages={"celery": 2}, answers=(), not_asked="E"))
    assert "no worker with this transport serves it" in unsure[0].what


def test_workers_of_a_full_server_are_not_asked_and_the_cure_is_room():
    facts = replace(server(used=960), fleet=replace(FLEET, answers=(), not_asked="96% of its maxmemory"))
    (finding,) = [each for each in check(facts) if each.id == "remote-control"]
    assert "were not asked (96% of its maxmemory, and would refuse their answers)" in finding.what
    assert "Make room" in finding.todo
    assert not server(used=940).server.has_no_room_for_replies
    assert not server(used=940, maxmemory=0).server.has_no_room_for_replies


def ids(facts):
    return [finding.id for finding in check(facts)]


def test_a_good_fleet_has_no_finding():
    assert check(GOOD) == []


def test_every_finding_comes_with_its_facts_and_no_other_does():
    found = {id_: check(facts) for id_, facts, _ in CASES}
    assert {id_: [finding.id for finding in findings] for id_, findings in found.items()} == {
        id_: [id_] for id_, _, _ in CASES
    }
    for id_, _, word in CASES:
        (finding,) = found[id_]
        assert word in finding.what, id_
        assert finding.todo
        assert finding.level == LEVELS[id_]


@pytest.mark.parametrize(
    "facts",
    [
        Facts(APP, down="E."),
        app(transport_fails="E."),
        app(url_refused="E."),
        app(keys_refused="E."),
        app(refused=("E.",)),
        app(not_recurring=("E.",)),
        app(not_sent=("E.",)),
        app(not_imported="E."),
    ],
)
def test_an_error_with_a_full_stop_gets_no_second_one(facts):
    whats = [finding.what for finding in check(facts) if "E." in finding.what]
    assert whats
    assert not any("E.." in what for what in whats)


def test_jobs_that_nobody_should_run_are_cancelled_so_that_their_callers_know():
    (finding,) = check(fleet(pending={"drawing": 3}))
    assert "`celery -A ... affinity cancel --type drawing`" in finding.todo


def test_every_finding_has_a_case():
    assert [case[0] for case in CASES] == list(LEVELS), "in the order of LEVELS as well"


def test_the_worst_comes_first():
    facts = replace(
        app(void={"worker_prefetch_multiplier": 1}), server=replace(SERVER, aof=False, save="", replica=True)
    )
    assert ids(facts) == ["replica", "persistence-off", "prefetch"]


def test_the_exit_code():
    by_id = {id_: facts for id_, facts, _ in CASES}
    for found, strict, code in [
        ([], True, 0),
        (["prefetch"], True, 0),
        (["dead-letters"], False, 0),
        (["dead-letters"], True, 1),
        (["dead-letters", "eviction"], False, 2),
        (["eviction"], True, 2),
    ]:
        findings = [finding for id_ in found for finding in check(by_id[id_])]
        assert exit_code(findings, strict) == code, found


def test_errors_are_what_loses_sticks_or_refuses_jobs_now():
    """A level changes only by decision: pipelines stop at errors."""
    assert {id_ for id_, level in LEVELS.items() if level is Level.ERROR} == {
        "transport", "broker-url", "settings", "option-misspelt", "not-recurring", "not-sent", "imports",
        "broker-down",
        "server-too-old", "replica", "schema", "eviction", "memory-full", "persistence-fails", "type-waits",
        "stock-messages", "nobody-ticks", "settings-names", "backend-unknown", "backend-fails", "backend-down",
        "cohorts-differ", "bound-full", "cluster-results", "tenant-not-filled", "cohort-down", "key-in-cohorts",
    }  # fmt: skip


def test_hints_have_no_bonus_where_tenants_take_turns_by_shares():
    (finding,) = check(replace(HINTED, fleet=replace(FLEET, settings=BY_SHARES)))
    assert finding.id == "hints-without-effect"
    assert "by shares" in finding.what


def test_what_is_no_finding():
    for facts in [
        fleet(answers=(ANSWER, replace(STOCK, queues=("other",)))),  # another app's worker, on queues of its own
        fleet(answers=(ANSWER, replace(ANSWER, id="id2", app="bank", namespace="bank"))),  # a fleet of another app
        fleet(members=(ONE, MemberFacts("id2", "two@h", ("money",))), answers=(
            ANSWER, replace(ANSWER, name="two@h", id="id2", app="bank"))),
        fleet(answers=(WorkerAnswer("one@h", ("pdf",), id="id1", versions=VERSIONS),)),  # guard and clock unknown
        app(priorities=("task shop.render",)),  # priority_order is set
        app(options=("something_of_a_later_kombu",), known_options=("namespace",)),
        fleet(members=(replace(ONE, age_s=2.0),), ticked_s=None, scheduled=1),  # a fleet that has just begun
        fleet(members=(replace(ONE, age_s=2.0),), ticked_s=9000.0),  # or begun again
        server(policy="volatile-lru"),
        server(schema=str(SCHEMA)),
        server(kind="redis", version=(7, 0, 0)),
        server(clock_here_s=2.0),
        answers(clock_ahead_s=-3.0),
        member(last_heartbeat_s=11.0),
        app(options=("visibility_timeout",), void={"worker_prefetch_multiplier": 1}, schedules_all=False),
        fleet(members=(ONE, MemberFacts("id2", "two@h", ())), answers=(  # drained, or with unscheduled queues
            ANSWER, replace(ANSWER, name="two@h", id="id2", queues=("mail",)))),
        fleet(answers=(ANSWER, replace(STOCK, queues=("mail",))), stock_messages={"mail": 2}),  # stock workers'
        replace(HINTED, fleet=replace(FLEET, settings=(ChangedSetting("locality_bonus", 9, 9, 9), NEITHER[1]))),
        replace(HINTED, fleet=replace(FLEET, settings=(NEITHER[0], ChangedSetting("placement", *["weighted"] * 3)))),
        fleet(settings=NEITHER),
        replace(GOOD, fleet=None),
    ]:  # fmt: skip
        assert ids(facts) == [], facts


def test_types_of_a_fleet_without_workers_are_said_once():
    assert ids(fleet(members=(), answers=())) == ["no-workers"]
    assert ids(fleet(members=(), answers=(), pending={"pdf": 1})) == ["type-waits", "no-workers"]


def test_a_type_that_waits_is_not_said_to_be_unserved_as_well():
    facts = replace(fleet(pending={"drawing": 1}), app=replace(APP, declared=OWN_NOT_SERVED))
    assert ids(facts) == ["type-waits"]


def test_a_server_without_a_limit_is_measured_by_its_machine():
    assert ids(server(maxmemory=0, used=95, of_machine=100)) == ["memory-nearly-full", "memory-unlimited"]


def test_a_transport_that_is_none_and_keys_that_cannot_be_are_named():
    (transport,) = check(app(transport="'celery_affinity:transport'", transport_fails="the name leads to <module>"))
    assert (transport.id, transport.level) == ("transport", Level.ERROR)
    assert "which is not a transport: the name leads to <module>" in transport.what
    (keys,) = check(app(keys_refused="namespace must be a str that holds no braces, got: '{x}'"))
    assert (keys.id, keys.level) == ("settings", Level.ERROR)
    assert "namespace must be a str that holds no braces" in keys.what


@pytest.mark.parametrize(("meant", "declared", "differs"), [
    ("pdf", "PDF", "case or blanks"), ("pdf", "p df", "case or blanks"), ("pdf", "pfd", "one letter"),
    ("video", "vidoe", "one letter"), ("video", "vdeo", "one letter"), ("report", "reports", "one letter"),
    ("image-resize", "image_resize", "one letter"), ("image-resize", "image-resise", "one letter"),
])  # fmt: skip
def test_a_type_that_is_served_but_for_a_letter_is_misspelt(meant, declared, differs):
    fleet = replace(FLEET, members=(replace(ONE, types=("pdf", meant)),))
    facts = Facts(replace(APP, declared={"pdf": ("task shop.render",), declared: ("task shop.draw",)}), SERVER, fleet)
    (finding,) = check(facts)
    assert finding.id == "type-misspelt"
    assert finding.what.startswith(f"Type {declared!r}, which task shop.draw declares, differs only in {differs} from")
    assert repr(meant) in finding.what


@pytest.mark.parametrize(("served", "declared"), [
    ("gpu1", "gpu2"), ("queue_a", "queue_b"), ("csv", "tsv"), ("us", "eu"), ("v1.pdf", "v2.pdf"), ("pdf", "excel"),
])  # fmt: skip
def test_a_type_that_is_another_one_is_unserved(served, declared):
    fleet = replace(FLEET, members=(replace(ONE, types=("pdf", served)),))
    facts = Facts(replace(APP, declared={"pdf": ("task shop.render",), declared: ("task shop.draw",)}), SERVER, fleet)
    assert ids(facts) == ["type-unserved"]


def test_a_worker_without_types_is_said_to_serve_none():
    idle = MemberFacts("id2", "two@h", ())
    answer = replace(ANSWER, name="two@h", id="id2", queues=())
    (finding,) = check(fleet(members=(ONE, idle), answers=(ANSWER, answer)))
    assert finding.what == "Worker two@h serves no type: it has nothing to do."


def test_jobs_that_wait_for_a_misspelt_type_are_asked_about():
    (finding,) = check(fleet(pending={"Pdf": 3}))
    assert finding.what == "3 job(s) of type 'Pdf' wait, and no live worker serves it; did you mean 'pdf'?"


def test_the_order_of_priorities_is_in_doubt_with_the_options_of_stock_as_well():
    facts = app(options=("priority_steps",), priority_order_is_set=False)
    assert ids(facts) == ["priority-order", "void-options"]


def test_a_result_backend_on_the_brokers_server_is_not_named_beside_the_broker():
    down = Facts(APP, down="Connection refused", results=ResultFacts("redis://localhost/0", down="Connection refused"))
    assert ids(down) == ["backend-down", "broker-down"]
    assert ids(replace(down, app=replace(APP, backend=BackendFacts("redis://localhost/0", 60.0)))) == ["broker-down"]


@pytest.mark.parametrize(
    ("pattern", "made", "is_one"),
    [
        ("customer:*", ("customer:*",), True),
        ("customer:7", ("customer:*",), True),
        ("*", ("customer:*",), True),
        ("*:7", ("customer:*",), True),
        ("customer:*:x", ("customer:*:y", "customer:*"), True),
        ("customer:*:x", ("customer:*:y",), False),
        ("plan", ("plan",), True),
        ("plans", ("plan",), False),
        ("anything", None, True),
        ("anything", (), False),
    ],
)
def test_a_limit_is_for_keys_that_rules_make(pattern, made, is_one):
    assert ids(app(limits=(pattern,), key_patterns=made)) == ([] if is_one else ["limit-of-no-key"])
    assert ids(replace(app(limits=(pattern,), key_patterns=()), fleet=replace(FLEET, limits_in_use=(pattern,)))) == []


def test_a_bound_that_is_full_says_what_becomes_of_further_calls_and_what_helps():
    def of(effect, *pauses):
        (found,) = check(fleet(full=(FullBound("pdf", 12, 10, effect, pauses),)))
        return found

    assert "further calls are refused, and raise QueueFull" in of("refuse").what
    assert "each further call drops the job that has waited longest" in of("drop-oldest").what
    assert "further calls are dropped" in of("drop-newest").what
    assert "Start more workers with -Q pdf" in of("refuse").todo
    assert "affinity resume pdf`" in of("refuse", "type 'pdf' is paused", "all types are paused").todo
    assert "affinity resume --all`" in of("refuse", "all types are paused").todo


def test_types_of_routes_are_compared_with_those_of_tasks_where_no_worker_runs():
    of_tasks = {"pdf": ("task shop.render",), "pdfs": ("task shop.all",)}
    declared = {**of_tasks, "pfd": ("task_routes 'shop.draw'",), "mail": ("beat_schedule entry 'm'",)}
    for facts in (
        Facts(replace(APP, declared=declared), SERVER),
        replace(app(declared=declared), fleet=FleetFacts(ticked_s=0.1)),
    ):
        (found,) = [each for each in check(facts) if each.id == "type-misspelt"]
        assert "'pfd', which task_routes 'shop.draw' declares, differs only in one letter from 'pdf'" in found.what
