"""The facts that the checks gather of an app."""

import ssl
from datetime import timedelta

import pytest
from celery import Task
from kombu import Queue

from celery_affinity import Affinity, Exclusive, Merge, Rate
from celery_affinity.check import Facts, check, jobs, server, tenants
from celery_affinity.check import app as app_findings
from celery_affinity.check.facts import FleetFacts, gather_app
from celery_affinity.check.gather import gather_facts
from celery_affinity.reports.status import Status
from celery_affinity.scheduler.runtime_settings import RuntimeSetting


def whats(rule, app):
    """Return what *rule* says of *app*."""
    return [finding.what for finding in rule.findings(Facts(gather_app(app)))]


def test_types_that_an_app_declares(new_app):
    app = new_app(
        task_routes={"shop.routed": {"queue": "routed"}, "shop.other.*": "others", "shop.asked": {"affinity": "asked"}},
        affinity_task_types={"shop.by_name.*": "named"},
        beat_schedule={"nightly": {"task": "far.down", "schedule": 1.0, "options": {"queue": Queue("night")}}},
    )
    for name, options in {
        "shop.pdf": {"affinity": "pdf"},
        "shop.both": {"affinity": Affinity("pdf", priority=3)},
        "shop.routed": {},
        "shop.asked": {"affinity": "not this: the route says otherwise"},
        "shop.by_name.x": {},
        "shop.plain": {"affinity": Affinity(priority=2)},
    }.items():
        app.task(nothing, name=name, shared=False, **options)
    ours = ("shop.", "beat_schedule entry")
    found = {
        type_: {each for each in who if any(word in each for word in ours)}
        for type_, who in gather_app(app).declared.items()
    }
    declared = {type_: who for type_, who in found.items() if who}  # other apps of this process share their tasks
    assert declared == {
        "pdf": {"task shop.pdf", "task shop.both"},
        "routed": {"task shop.routed", "task_routes 'shop.routed'"},
        "others": {"task_routes 'shop.other.*'"},
        "asked": {"task shop.asked", "task_routes 'shop.asked'"},
        "named": {"task shop.by_name.x", "affinity_task_types 'shop.by_name.*'"},
        "night": {"beat_schedule entry 'nightly'"},
        "celery": {"task shop.plain"},
    }
    assert whats(app_findings.priority_order, app) == []


def nothing():
    pass


def ids(app):
    there_is_none = {"broker-down", "hiredis"}  # that port has no server, and hiredis may be missing here
    return {finding.id for finding in check(gather_facts(app, fleet=False))} - there_is_none


def entry(**options):
    return {"nightly": {"task": "far.down", "schedule": 1.0, "options": options}}


def test_priorities_out_of_range_are_named_with_their_places(new_app):
    app = new_app(
        beat_schedule=entry(priority=255),
        task_routes={"shop.*": {"affinity": Affinity("pdf", priority=-1)}},
        task_annotations={"shop.pdf": {"priority": "11"}},
    )
    app.task(nothing, name="shop.pdf", shared=False, affinity=Affinity("pdf", priority=12))
    app.task(nothing, name="shop.fine", shared=False, priority=10)
    found = whats(app_findings.priority_range, app)
    assert set(found) >= {
        "beat_schedule entry 'nightly': priority 255 counts as 10.",
        "task_routes 'shop.*': priority -1 counts as 0.",
        "task_annotations 'shop.pdf': priority 11 counts as 10.",
        "task shop.pdf: priority 12 counts as 10.",
    }
    assert not [each for each in found if "shop.fine" in each]


def test_what_an_app_gets_wrong(new_app):
    """`test_rules` has an app for each finding. These apps are further causes, or have none."""
    url = "redis://127.0.0.1:1"
    assert ids(new_app(url)) == set()
    assert ids(new_app(url, task_default_priority=3)) == {"priority-order"}
    assert ids(new_app(url, task_default_priority=3, affinity_priority_order="lower-first")) == set()
    assert ids(new_app(url, task_default_priority=255, affinity_priority_order="lower-first")) == {"priority-range"}
    assert ids(new_app(url, beat_schedule=entry(priority="high"), affinity_priority_order="lower-first")) == {
        "not-sent"
    }
    assert ids(new_app(url, beat_schedule=entry(affinty="pdf"))) == {"option-misspelt"}
    assert ids(new_app(url, affinity_guard=False)) == {"no-guard"}
    assert ids(new_app(url, result_backend=url + "/1", result_expires=timedelta(hours=1))) == set()
    assert ids(new_app(url, result_backend=url + "/1", result_expires=timedelta(0))) == {"results-never-expire"}
    assert ids(new_app(url, result_backend="redis://127.0.0.1:2", result_expires=None)) == {"backend-down"}
    assert ids(new_app(url.replace("redis", "rediss"))) == set()
    insecure = new_app(url.replace("redis", "rediss"), broker_use_ssl={"ssl_cert_reqs": ssl.CERT_NONE})
    assert ids(insecure) == {"tls-unverified"}
    mixed = new_app(url, affinity_queues=["pdf"], worker_prefetch_multiplier=1, task_routes={"shop.*": "mail"})
    assert ids(mixed) == set()
    assert set(gather_app(mixed).declared) <= {"pdf"}
    assert ids(new_app(url, broker_transport="celery_affinity:nothing")) == {"transport"}
    (misspelt,) = (
        f for f in check(gather_facts(new_app(url, broker_transport="celery_afinity:Transport"))) if f.id == "transport"
    )
    assert "is not a transport: ModuleNotFoundError" in misspelt.what
    assert ids(new_app(url, broker_transport_options={"global_keyprefix": None})) == set()
    assert ids(new_app(url, broker_transport_options={"namespace": 5})) == {"settings"}
    wrong = new_app(url)
    wrong.task(nothing, name="bad", shared=False)
    wrong.tasks["bad"].affinity = 3
    assert ids(wrong) == {"settings"}


def test_tasks_with_hints_are_known(new_app):
    app = new_app(affinity_task_rules={"shop.named": {"locality": "m:{x}"}, "shop.other": {"tenant": "{x}"}})
    app.task(nothing, name="shop.hinted", shared=False, affinity=Affinity(locality="m:{x}"))
    app.task(nothing, name="shop.plain", shared=False, affinity=Affinity("pdf"))
    facts, values = gather_app(app), {"locality_bonus": 0, "placement": "idle"}
    settings = tuple(RuntimeSetting(name=name, value=value, conf=value, own=value) for name, value in values.items())
    fleet = FleetFacts(facts, Status(types=[], workers=[], scheduled=0, dead=0, counters={}), settings=settings)
    (finding,) = jobs.hints_without_effect.findings(Facts(facts, fleet=fleet))
    assert finding.what.startswith("Jobs of task shop.hinted, affinity_task_rules['shop.named'] have hints")


def of_customer(customer):
    pass


def test_keys_of_tasks_in_several_cohorts(new_app):
    app = new_app(
        affinity_cohorts={"ml": {"types": ["gpu"]}},
        affinity_tenants={"acme": {"max": 3}},
        affinity_task_rules={"shop.draw": {"tenant": "{customer}"}},
    )
    for name, affinity in (
        ("shop.draw", Affinity("gpu", exclusive="customer:{customer}")),
        ("shop.render", Affinity("pdf", exclusive="customer:{customer}", tenant="{customer}", rate=Rate("9/m", "api"))),
        ("shop.print", Affinity("excel", rate=Rate("9/m", "api"))),
        ("shop.mail", Affinity("gpu", exclusive=Exclusive(lambda customer: customer))),
    ):
        app.task(of_customer, name=name, shared=False, affinity=affinity)
    found = [what.partition(". Each")[0] for what in whats(tenants.key_in_cohorts, app)]
    assert sorted(found) == [
        f"Tasks of several cohorts have keys such as {key!r}: shop.draw (ml), shop.render (default)"
        for key in ("customer:*", "tenant:*")
    ]


def test_tasks_that_merge_and_have_a_class_that_does_so_too(new_app):
    app = new_app(affinity_task_rules={"shop.named": {"merge": {"key": "k", "keep": "last"}}})
    singleton = type("Singleton", (app.Task,), {"__module__": "celery_singleton.singleton"})
    once = type("QueueOnce", (app.Task,), {"__module__": "celery_once.tasks"})
    own = type("Singleton", (app.Task,), {"__module__": "shop"})
    merge = Affinity(merge=Merge("k", keep="last"))
    for name, base, affinity in (
        ("shop.derived", type("Ours", (singleton,), {}), merge),
        ("shop.named", once, None),
        ("shop.own", own, merge),
        ("shop.plain", singleton, None),
    ):
        app.task(nothing, name=name, base=base, shared=False, affinity=affinity)
    assert [what.partition(" refuses")[0] for what in whats(app_findings.merges_twice, app)] == [
        "Task shop.derived has merge=, but its base class celery_singleton.Singleton",
        "Task shop.named has merge=, but its base class celery_once.QueueOnce",
    ]


def strategy(task, app, consumer):
    raise AssertionError("no worker runs here")


def test_a_task_that_gathers_more_than_a_worker_buffers_is_found(new_app):
    gathering = type("Gathering", (Task,), {"abstract": True, "Strategy": strategy})
    for conf, expected in (
        ({}, ["Task shop.large gathers 1,001 calls (flush_every), but a worker keeps at most 1,000 calls"]),
        (
            {"worker_prefetch_multiplier": 0},
            ["Task shop.large gathers 1,001 calls (flush_every), but a worker keeps at most 1,000 calls"],
        ),
        ({"worker_prefetch_multiplier": 251, "worker_concurrency": 4}, []),
    ):
        app = new_app(**conf)
        for name, base, number in (
            ("shop.large", gathering, 1_001),
            ("shop.small", gathering, 1_000),
            ("shop.text", gathering, "many"),
            ("shop.plain", Task, 5_000),
        ):
            app.task(nothing, name=name, base=base, shared=False, flush_every=number)
        assert [what.partition(" in buffers")[0] for what in whats(app_findings.small_batches, app)] == expected
        assert whats(app_findings.prefetch, app) == [], "the setting has an effect"


def test_a_task_that_gathers_calls_and_merges_them_is_refused(new_app):
    app = new_app()
    gathering = type("Gathering", (Task,), {"abstract": True, "Strategy": strategy})
    app.task(nothing, name="shop.both", base=gathering, shared=False, affinity=Affinity(merge=Merge("k", keep="last")))
    (refused,) = gather_app(app).refused
    assert "shop.both" in refused
    assert 'keep="all"' in refused


def test_tasks_that_may_be_stopped_and_whether_they_have_a_tenant(new_app):
    app = new_app(
        task_acks_late=True,
        task_routes=[
            {
                "shop.nobody": {"tenant": False},
                "shop.queued": {"queue": "pdf"},
                "shop.routed": {"preemptible": True, "tenant": "batch"},
            },
            {"shop.nobody": {"tenant": "batch"}, "shop.queued": {"preemptible": True}},
        ],
        affinity_task_rules={"shop.named": {"preemptible": True}, "shop.bare": {"tenant": "batch"}},
    )
    for name, affinity in (
        ("shop.bare", Affinity(preemptible=True)),
        ("shop.named", None),
        ("shop.nobody", Affinity(tenant="batch", preemptible=True)),
        ("shop.not", Affinity(tenant="batch", preemptible=False)),
        ("shop.own", Affinity(tenant="batch", preemptible=True)),
        ("shop.queued", None),
        ("shop.routed", None),
    ):
        app.task(nothing, name=name, shared=False, affinity=affinity)
    expected = {"shop.bare": True, "shop.named": False, "shop.nobody": False, "shop.own": True, "shop.routed": True}
    assert dict(tenants._preemptible_tasks(gather_app(app))) == expected
    without_tenant = whats(tenants.preemptible_without_tenant, app)
    assert [what.partition(", but no tenant")[0] for what in without_tenant] == [
        "Task shop.named has preemptible=True",
        "Task shop.nobody has preemptible=True",
    ]


def for_anybody(pages=1, *, customer=None, region="eu"):
    pass


def test_tasks_whose_tenant_has_no_value_in_some_calls(new_app):
    app = new_app(
        task_routes=[
            {
                "shop.named": {"tenant": "acme"},
                "shop.none": {"tenant": False},
                "shop.routed.first": {"queue": "pdf"},
            },
            {"shop.routed.*": {"affinity": Affinity(tenant="{customer}")}},
        ],
        affinity_task_rules={"shop.by_name": {"tenant": "{customer}:{region}"}},
    )
    own = Affinity(tenant="{customer}")
    for name, function, affinity in (
        ("shop.by_name", for_anybody, None),
        ("shop.routed.first", for_anybody, None),
        ("shop.made", for_anybody, Affinity(tenant=lambda args, kwargs: None)),
        ("shop.named", for_anybody, own),
        ("shop.none", for_anybody, own),
        ("shop.own", for_anybody, Affinity(tenant="{args[0]}:{task}:{region}")),
        ("shop.plain", for_anybody, None),
        ("shop.routed.it", for_anybody, Affinity(tenant="{region}")),
        ("shop.routed.no", nothing, None),
        ("shop.said", of_customer, own),
        ("shop.template", for_anybody, own),
    ):
        app.task(function, name=name, shared=False, affinity=affinity)
    route = "task_routes 'shop.routed.*'"
    places = [what.partition(" of task ")[2].partition(" out:")[0] for what in whats(tenants.tenant_without_value, app)]
    assert places == [
        "shop.by_name that leave {customer}",
        "shop.routed.it that leave {customer}",
        "shop.template that leave {customer}",
    ]
    assert [what.partition(" has no value")[0] for what in whats(tenants.tenant_without_value, app)] == [
        'affinity_task_rules: tenant "{customer}:{region}"',
        f'{route}: tenant "{{customer}}"',
        'task shop.template: tenant "{customer}"',
    ]
    (complaint,) = whats(tenants.tenant_not_filled, app)
    no_argument = "task shop.routed.no has no argument 'customer'; it takes none"
    assert complaint.startswith(f'{route}: tenant "{{customer}}": {no_argument}.')


CLUSTER = "redis+cluster://:secret@one:7000;redis+cluster://two"


@pytest.mark.parametrize(
    ("backend", "is_there"),
    [
        ("redis://one:7000/0", True),
        ("redis://two", True),
        ("redis://three", False),
        ("redis+cluster://three", True),
        ("redis-cluster://three", False),
        ("redis-cluster://one:7000", False),
        ("redis-cluster://one:7000;redis-cluster://two", False),
        ("redis+cluster://one:7000;redis+cluster://two", True),
        ("redis-cluster://u:secret@one:7000;redis-cluster://u:secret@two:7000", False),
        ("valkey://two", True),
        ("db+sqlite:///results", False),
        (None, False),
    ],
)
def test_results_on_a_node_of_a_cluster_are_found(new_app, backend, is_there):
    app = new_app(broker_url=CLUSTER, result_backend=backend)
    found = gather_app(app)
    assert (found.cluster, bool(whats(server.cluster_results, app)), found.url_refused) == (True, is_there, None)
    assert not found.results_on_broker, "results are elsewhere, or on many nodes"
    assert "secret" not in found.broker


def test_a_server_is_no_cluster(new_app):
    app = new_app(broker_url="redis://one:7000/0", result_backend="redis://one:7000/0")
    assert (gather_app(app).cluster, whats(server.cluster_results, app)) == (False, [])
    assert gather_app(app).results_on_broker
