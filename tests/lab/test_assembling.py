"""A trace is assembled from workers' pages: repeated pages, lost rows, workers with one name, and cut claims."""

import json

import pytest

from celery_affinity.lab.trace_assembly import KeyHashes, TraceAssembly, traced_job
from celery_affinity.scheduler.messages import page_query
from celery_affinity.scheduler.recordings import Page

BEGIN, END = 1_000, 2_000


@pytest.fixture
def assembly():
    return TraceAssembly(KeyHashes())


def page(worker="w1", *, name="w@host", to=END, joined=500, since=BEGIN, ended=0, slots=2, types=("pdf",), **more):
    facts = {"worker": worker, "name": name, "types": list(types), "slots": slots, "joined": joined}
    return json.dumps({**facts, "since": since, "to": to, "ended": ended, **more})


def add(assembly, worker, rows, from_server=()):
    """Add a page: facts, rows, and the server's times of the requested jobs."""
    assembly.add(Page("1-1", worker, page_query(rows).text, from_server))


def row(
    job, fence, enqueued, *times, outcome="done", lane="queued.3", freed=None, brought=0, release=0, task="", size=None
):
    """Return a row of a page. *times*: arrival, and perhaps start and end."""
    arrived, started, ended = (*times, None, None)[:3]
    passed = [None if at_us is None else at_us - enqueued for at_us in (arrived, started, ended, freed)]
    return (job, str(fence), ("pdf", lane, outcome, task), enqueued, *passed, brought, release, size)


def trace(assembly, waiting=()):
    return assembly.trace(BEGIN, END, waiting)


def test_times_are_relative_to_the_traces_start(assembly):
    add(assembly, page(ended=1), [row("a", 1, 900, 1_100, 1_200, 1_300, freed=1_310)])
    (job,) = trace(assembly).jobs
    assert (job.enqueued_us, job.since_us, job.claimed_us, job.started_us, job.ended_us) == (-100, -100, 100, 200, 300)
    assert job.freed_us == 310
    assert (job.priority, job.on_demand, job.worker) == (3, False, "w@host")


def test_repeated_page_is_counted_once(assembly):
    for _ in range(2):
        add(assembly, page(ended=1), [row("a", 1, 900, 1_100, 1_200, 1_300)])
    result = trace(assembly)
    assert (len(result.jobs), result.lost) == (1, 0)


def test_running_and_ended_rows_of_a_claim_become_one(assembly):
    add(assembly, page(to=1_250), [row("a", 1, 900, 1_100, 1_200, outcome="running")])
    add(assembly, page(ended=1), [row("a", 1, 900, 1_100, 1_200, 1_300)])
    (job,) = trace(assembly).jobs
    assert (job.outcome, job.ended_us) == ("done", 300)


def test_missing_rows_are_counted_as_lost(assembly):
    add(assembly, page(ended=3), [row("a", 1, 900, 1_100, 1_200, 1_300)])
    assert trace(assembly).lost == 2


@pytest.mark.parametrize(
    "text",
    [
        "no page",
        "7",
        "[[]]",
        '[[["pdf","queued.3","done"]],["a"],["1"],[1],[900],[1],[1],[1],[1],[0],[0],[1]]',  # there is one kind
        '[[["pdf","queued.3","done"]],["a"],["1"],[0],[900],[1],[1],[1],[1],[0],[0]]',  # a column is missing
        '[[["pdf","queued.3","done"]],["a"],["1"],[0],["x"],[1],[1],[1],[1],[0],[0],[1]]',
        '[[["pdf","queued.3","done"]],["a"],["1"],[0],[900],[null],[1],[1],[1],[0],[0],[1]]',
        '[[["pdf","queued.3","done"]],[7],["1"],[0],[900],[1],[1],[1],[1],[0],[0],[1]]',
        '[[["pdf","queued.3","done"]],["a"],["x"],[0],[900],[1],[1],[1],[1],[0],[0],[1]]',
        '[[["pdf","queued.3","?"]],["a"],["1"],[0],[900],[1],[1],[1],[1],[0],[0],[1]]',
        "[" * 100_000,
    ],
)
def test_rows_of_an_unreadable_page_are_counted_as_lost(assembly, text):
    add(assembly, page(ended=1), [row("a", 1, 900, 1_100, 1_200, 1_300)])
    assembly.add(Page("1-2", page(ended=2), text, ["1", "2"]))
    result = trace(assembly)
    assert (len(result.jobs), result.lost) == (1, 1)


def test_claim_that_ended_before_the_trace_is_omitted(assembly):
    add(assembly, page(ended=2), [row("a", 1, 100, 200, 300, 999), row("b", 2, 100, 200, 300, 1_000)])
    assert [job.fence for job in trace(assembly).jobs] == [2]


def test_claims_beyond_the_traces_end_are_running_or_pending(assembly):
    rows = [row("a", 1, 900, 1_100, 1_200, 2_001), row("b", 2, 1_900, 2_001, 2_002, 2_003), row("c", 3, 2_001, 2_002)]
    add(assembly, page(ended=2), rows)
    first, second = trace(assembly, [("b", traced_job("pdf", 1_900, "queued.3", {}))]).jobs
    assert (first.outcome, first.ended_us, first.started_us, first.fence) == ("running", None, 200, 1)
    assert (second.outcome, second.claimed_us, second.worker, second.fence) == ("pending", None, None, None)


def test_returned_job_waits_from_its_return(assembly):
    add(assembly, page(ended=1), [row("a", 1, 900, 1_100, None, 1_300, outcome="returned")])
    first, second = trace(assembly, [("a", traced_job("pdf", 900, "demand.7", {}))]).jobs
    assert (first.outcome, first.started_us) == ("returned", None)
    assert (second.since_us, second.enqueued_us, second.outcome) == (300, -100, "pending")
    assert (second.on_demand, second.priority) == (True, 7)


def test_times_of_a_late_clock_are_put_in_order(assembly):
    add(assembly, page(ended=1), [row("a", 1, 1_100, 1_050, 1_020, 1_010)])
    (job,) = trace(assembly).jobs
    assert (job.claimed_us, job.started_us, job.ended_us) == (100, 100, 100)


def test_server_supplies_a_lane_missing_from_the_row(assembly):
    unknown = row("a&", 1, 900, 1_100, 1_200, 1_300, lane="")
    known = "demand.9 1090  key=rate%3Ak rate=5/60000000 key=tenant%3At quota=settings\tt"
    add(assembly, page(ended=1), [unknown], from_server=[known])
    (job,) = trace(assembly).jobs
    assert (job.on_demand, job.priority, job.claimed_us, job.rate_limit) == (True, 9, 90, "5/m")
    assert job.tenant
    assert job.exclusive is None


def test_server_times_of_a_claim_replace_the_workers(assembly):
    early = row("a", 1, 900, 1_110, 1_080, 1_310, freed=1_320, release=1)
    late = row("b&", 2, 900, 1_290, 1_350, 1_400, freed=1_390, lane="", release=2)
    add(assembly, page(ended=2), [early, late], from_server=["1100", "1300", "queued.3 1300 1410"])
    one, other = trace(assembly).jobs
    assert (one.claimed_us, one.started_us, one.ended_us, one.freed_us) == (100, 100, 300, 300)
    assert (other.claimed_us, other.started_us, other.ended_us, other.freed_us) == (300, 350, 400, 410)


def test_release_times_apply_to_all_claims_of_the_release(assembly):
    """Claim 3 arrived with the first release, whose page lists it as running, and was the only end in the second."""
    together = [row("a", 1, 900, 1_110, 1_120, 1_305, freed=1_320, release=1)]
    together += [row("b", 2, 900, 1_110, 1_120, 1_308, freed=1_320, brought=9, release=1)]
    runs = row("c", 3, 950, 1_330, 1_340, outcome="running", brought=1)
    add(assembly, page(to=1_400), [*together, runs], from_server=["1100", "1315"])
    assert [job.claimed_us for job in trace(assembly).jobs] == [100, 110, 315], "release 9 is unknown"
    ended = row("c", 3, 950, 1_330, 1_340, 1_500, freed=1_510, brought=1, release=2)
    add(assembly, page(ended=3), [ended], from_server=["1315", "1505"])
    result = trace(assembly)
    assert [(job.claimed_us, job.freed_us) for job in result.jobs] == [(100, 315), (110, 315), (315, 505)]
    assert result.lost == 0


@pytest.mark.parametrize(
    ("facts", "times", "claimed_us"),
    [
        ({"release": 1}, ["9000000", "9001320"], 110),  # far later
        ({"outcome": "returned", "lane": ""}, ["queued.3 1100 1050"], 100),  # earlier
    ],
)
def test_server_times_of_another_claim_are_ignored(assembly, facts, times, claimed_us):
    a_row = row("a", 1, 900, 1_110, 1_200, 1_310, freed=1_320, **facts)
    add(assembly, page(ended=1), [a_row], from_server=times)
    (job,) = trace(assembly).jobs
    assert (job.claimed_us, job.freed_us) == (claimed_us, 320)


def test_simultaneous_workers_of_one_name_get_different_names(assembly):
    add(assembly, page("w1", joined=500, left=1_500), [])
    add(assembly, page("w2", joined=1_200, ended=1), [row("a", 1, 900, 1_300, 1_300, 1_400)])
    add(assembly, page("w3", joined=1_600), [])
    result = trace(assembly)
    assert [(each.name, each.joined_us, each.left_us) for each in result.workers] == [
        ("w@host", 0, 500),
        ("w@host~2", 200, None),
        ("w@host", 600, None),
    ]
    assert result.jobs[0].worker == "w@host~2"


def test_worker_with_changed_types_or_slots_leaves_and_joins(assembly):
    add(assembly, page(to=1_100), [])
    add(assembly, page(to=1_500, slots=3, types=("pdf", "excel")), [])
    assert [(each.types, each.slots, each.joined_us, each.left_us) for each in trace(assembly).workers] == [
        (("pdf",), 2, 0, 500),
        (("excel", "pdf"), 3, 500, None),
    ]


def test_worker_that_continues_after_a_silence_has_not_left(assembly):
    add(assembly, page(to=1_100), [])
    assert assembly.see([], 1_200) == []
    add(assembly, page(to=1_300), [])
    assert assembly.see(["w1", "new"], 1_400) == ["new"]
    assert trace(assembly).workers[0].left_us is None


def test_trace_begins_when_the_last_present_worker_records(assembly):
    add(assembly, page("w1", joined=500, since=1_100), [])
    add(assembly, page("w2", joined=1_000, since=1_200), [])
    add(assembly, page("w3", joined=1_300, since=1_301), [])
    assembly.add_worker("w5", "seen@host", ["pdf"], 1, 500)  # registered at the server, without a page so far
    assert assembly.begun_us(BEGIN) == 1_200
    add(assembly, page("w5", joined=500, since=1_250), [])
    assert assembly.begun_us(BEGIN) == 1_250
    assert assembly.behind(["w1", "w4"], END) == ["w4"]


def test_continuous_recording_ends_at_the_last_common_heartbeat(assembly):
    add(assembly, page("w1", name="a", to=1_900), [])
    add(assembly, page("w2", name="b", to=1_850), [])
    add(assembly, page("died", name="c", to=1_300), [])
    add(assembly, page("left", name="d", to=1_400, left=1_400), [])
    assert assembly.known_until(["w1", "w2"], 1_700, END) == 1_850
    assert {each.name: each.left_us for each in trace(assembly).workers} == {"a": None, "b": None, "c": 300, "d": 400}


def test_key_hashes_differ_by_trace_and_kind():
    one, other = KeyHashes(), KeyHashes()
    assert one.of("tenant", "acme") == one.of("tenant", "acme")
    assert len({one.of("tenant", "acme"), other.of("tenant", "acme"), one.of("exclusive", "acme")}) == 3


def test_task_size_and_due_time_of_a_claim_are_kept(assembly):
    rows = [
        row("a", 1, 900, 1_100, 1_200, 1_300, task="read", size=2.5),
        row("b", 2, 900, 1_100, 1_200, 1_300, lane=""),
        row("c", 3, 900, 1_100, 1_200, 1_300, lane=""),
    ]
    facts = [
        "",
        "",
        "queued.3 1100 1300 \tread\t30000900 w30000000 d5000900 s1500000\t7",
        "queued.3 1100 1300 \tread\tx\t",
    ]
    add(assembly, page(ended=3), rows, facts)
    known, due, damaged = trace(assembly).jobs
    assert (known.task, known.size, known.start_within_us, known.head_us) == ("read", 2.5, None, None)
    assert (due.task, due.size, due.start_within_us, due.deadline_us, due.head_us) == (
        "read",
        1.5,
        30 * 10**6,
        5 * 10**6,
        7,
    )
    assert (damaged.task, damaged.start_within_us, damaged.head_us) == ("read", None, 0)


def test_page_of_an_older_worker_is_read(assembly):
    text = '[[["pdf","queued.3","done"]],["a"],["1"],[0],[900],[200],[300],[400],[410],[0],[0],[1]]'
    assembly.add(Page("1-1", page(ended=1), text, ["", ""]))
    (job,) = trace(assembly).jobs
    assert (job.priority, job.task, job.size) == (3, None, None)
