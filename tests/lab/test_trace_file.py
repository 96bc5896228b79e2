"""Trace files: a written trace is read back unchanged, and an invalid file is refused with its line."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_affinity.clock import SECOND_US as S
from celery_affinity.errors import TraceError
from celery_affinity.lab import trace_file
from celery_affinity.lab.replay import replay, run_engine
from celery_affinity.lab.scenario import scenario_of
from celery_affinity.lab.trace import OLDER_SCHEMA, OUTCOMES, SCHEMA, Trace, TracedJob, TracedWorker
from examples.made_up_trace import with_claims

HEADER = {"row": "header", "schema": SCHEMA, "length_us": 9, "workers": [{"name": "w", "types": ["pdf"], "slots": 1}]}
JOB = {"row": "job", "type": "pdf", "enqueued_us": 1, "claimed_us": 2, "started_us": 3, "ended_us": 4, "worker": "w"}

#: A CSV cell has no surrounding spaces and no carriage return.
names = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1, max_size=6).filter(
    lambda name: name == name.strip()
)
message = st.none() | names


@st.composite
def jobs(draw):
    times = sorted(draw(st.lists(st.integers(-(10**6), 10**6), min_size=6, max_size=6)))
    enqueued_us, since_us, *claim = times
    claimed_us, started_us, ended_us, freed_us = (
        at_us if known else None for at_us, known in zip(claim, draw(st.tuples(*[st.booleans()] * 4)), strict=True)
    )
    return TracedJob(
        type=draw(names),
        enqueued_us=enqueued_us,
        since_us=since_us,
        on_demand=draw(st.booleans()),
        priority=draw(st.integers(0, 10)),
        fence=draw(st.none() | st.integers(1, 4 * 10**18)),
        claimed_us=claimed_us,
        started_us=started_us,
        ended_us=ended_us,
        freed_us=freed_us,
        outcome=draw(st.sampled_from(OUTCOMES)),
        worker=draw(message),
        exclusive=draw(message),
        exclusive_limit=draw(message),
        rate=draw(message),
        rate_limit=draw(message),
        merge=draw(message),
        tenant=draw(message),
        task=draw(message),
        size=draw(st.none() | st.floats(0, 1e12)),
        start_within_us=draw(st.none() | st.integers(0, 10**17 - 1)),
        deadline_us=draw(st.none() | st.integers(1 - 10**17, 10**17 - 1)),
        head_us=draw(st.none() | st.integers(0, 10**17 - 1)),
    )


@st.composite
def workers(draw):
    """Draw workers without two simultaneous workers of one name."""
    found = []
    for name in draw(st.lists(names, unique=True, max_size=4)):
        moves = sorted(draw(st.lists(st.integers(1, 10**6), unique=True, min_size=1, max_size=4)))
        joins, leaves = moves[::2], [*moves[1::2], *([None] if len(moves) % 2 else [])]
        if draw(st.booleans()):
            joins[0] = 0
        for joined_us, left_us in zip(joins, leaves, strict=True):
            types, slots = tuple(draw(st.lists(names, max_size=3))), draw(st.integers(0, 100))
            found.append(TracedWorker(name, types, slots, joined_us, left_us))
    return tuple(sorted(found, key=lambda each: each.joined_us))


@given(
    st.builds(
        Trace,
        length_us=st.integers(0, 10**12),
        workers=workers(),
        jobs=st.lists(jobs(), min_size=1, max_size=5).map(tuple),
        settings=st.dictionaries(names, st.text(max_size=5)),
        paused=st.lists(names, max_size=2).map(tuple),
        recorded_at=st.text(max_size=5),
        versions=st.dictionaries(names, st.text(max_size=5)),
        lost=st.integers(0, 9),
    )
)
def test_written_trace_is_read_back_unchanged(tmp_path_factory, trace):
    folder = tmp_path_factory.mktemp("traces")
    for name in ("trace.jsonl", "trace.csv"):
        trace_file.write_trace(trace, folder / name)
        found = trace_file.read_trace(folder / name, warn=lambda _: None)
        assert sorted(found.workers, key=repr) == sorted(trace.workers, key=repr)
        assert found == Trace(**{**_fields(trace), "workers": found.workers})


def _fields(trace):
    return {name: getattr(trace, name) for name in Trace.__dataclass_fields__}


@pytest.fixture
def read(tmp_path):
    """Return a function that reads lines (texts or rows) and returns the trace and the warnings."""

    def read(*lines, end="\n"):
        path = tmp_path / "trace"
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("\n".join(texts) + end)
        warnings = []
        return trace_file.read_trace(path, warn=warnings.append), warnings

    return read


def test_valid_trace_has_no_warning(read):
    trace, warnings = read(HEADER, JOB)
    assert (len(trace.jobs), trace.jobs[0].outcome, warnings) == (1, "done", [])


def test_truncated_last_line_is_dropped_with_a_warning(read):
    trace, (warning,) = read(HEADER, JOB, JOB, json.dumps(JOB)[:30], end="")
    assert len(trace.jobs) == 2
    assert "line 4, the last one, is cut" in warning


#: A change of the second job -> the error.
BAD_ROWS = [
    ({"ended_us": 2}, r"line 3: the clock steps: ended_us must be started_us \(3\) or later, got: 2"),
    ({"claimed_us": 0}, r"line 3: the clock steps: claimed_us must be since_us \(1\) or later, got: 0"),
    ({"started_us": None, "ended_us": 1}, r"ended_us must be claimed_us \(2\) or later, got: 1"),
    ({"claimed_us": "soon"}, "line 3: claimed_us must be a whole number, got: 'soon'"),
    ({"freed_us": 10**19}, "line 3: freed_us must be a whole number of 4,000,000,000,000,000,000 at most, got: 1000"),
    ({"claimed_us": 2.5}, "line 3: claimed_us must be a whole number, got: 2.5"),
    ({"priority": 11}, "line 3: priority must be a whole number from 0 to 10, got: 11"),
    ({"mode": "now"}, "line 3: mode must be queued or demand, got: 'now'"),
    ({"outcome": "gone"}, "line 3: outcome must be done or failed or .*, got: 'gone'"),
    ({"type": ""}, "line 3: type must be a text that is not empty, got: ''"),
    ({"type": "p\ud800"}, r"line 3: type must be a text in UTF-8, got: 'p\\ud800'"),
    ({"type": None}, "line 3: a job needs the column type"),
    ({"clamed_us": 1}, "line 3: unknown column 'clamed_us'; did you mean 'claimed_us'?"),
    ({"colour": 1}, "line 3: unknown column 'colour'; columns are fence, type,"),
    ({"row": "jib"}, "line 3: row must be job, join or leave, got: 'jib'"),
]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        *(([HEADER, JOB, {**JOB, **change}], message) for change, message in BAD_ROWS),
        ([HEADER, JOB, json.dumps(JOB)[:30], JOB], "line 3: a row must be an object in JSON; the line is broken, and"),
        ([{**HEADER, "schema": f"{SCHEMA[:-1]}9"}, JOB], rf"line 1: the schema must be '{SCHEMA}', got: '.*/9'"),
        ([HEADER], "the trace has no jobs"),
        ([""], "line 1: a header in JSON, or the columns of a CSV file, must come first"),
        (['{"row": '], "line 1: the header is cut"),
        ([{**HEADER, "length_us": "long"}, JOB], "line 1: length_us and lost must be a whole number"),
        ([{**HEADER, "length_us": -7}, JOB], "line 1: length_us must be 0 or more, got: -7"),
        ([{**HEADER, "workers": ["w"]}, JOB], "line 1: workers must be a list of objects"),
        ([{**HEADER, "settings": {"age_weight": 16}}, JOB], "line 1: settings must be an object of texts"),
        ([{**HEADER, "paused": ["\udfff"]}, JOB], "line 1: paused must be a list of texts in UTF-8"),
        (
            [{**HEADER, "workers": [{"name": "w", "types": ["pdf"], "slots": 10**15}]}, JOB],
            "line 1: slots must be a whole number from 0 to 999,999, got: 1000000000000000",
        ),
        ([HEADER, "[" * 200_000, JOB], "line 2: a row must be an object in JSON; the line is broken"),
        ([{**HEADER, "colour": 1}, JOB], "line 1: unknown field 'colour' of a header"),
        ([HEADER, {"row": "join", "worker": "v", "at_us": 1, "types": []}], "line 2: slots must be a whole number"),
        ([HEADER, {"row": "leave", "worker": "w"}], "line 2: at_us must be a whole number, got: None"),
    ],
)
def test_invalid_trace_file_is_refused_in_one_sentence(read, lines, message):
    with pytest.raises(TraceError, match=message):
        read(*lines)


def test_trace_of_an_older_release_is_read_and_replayed(read):
    trace, warnings = read({**HEADER, "schema": OLDER_SCHEMA}, JOB)
    assert (replay(trace).fidelity, warnings) == (1.0, [])
    assert (trace.jobs[0].task, trace.jobs[0].head_us) == (None, None)


@pytest.mark.parametrize(
    ("column", "value"),
    [("size", -1), ("size", "nan"), ("size", 1e13), ("size", True), ("start_within_us", -1), ("deadline_us", 10**17)],
)
def test_size_or_due_time_out_of_bounds_is_refused(read, column, value):
    with pytest.raises(TraceError, match=f"line 2: {column} must be a"):
        read(HEADER, {**JOB, column: value})


def test_unserved_types_are_a_warning(read):
    trace, (warning,) = read(HEADER, JOB, {**JOB, "type": "excel", "worker": None})
    assert len(trace.jobs) == 2
    assert warning == "no worker of the trace serves the type(s) excel: their jobs are never claimed"


def test_unreadable_settings_are_a_warning(read):
    good = {"age_weight": "32", "limits": "type%3Apdf=1", "tenants": "4f1a=max:1"}
    assert read({**HEADER, "settings": good}, JOB)[1] == []
    _, (warning,) = read({**HEADER, "settings": {**good, "age_weight": "nan", "limits": "pdf"}}, JOB)
    assert warning == (
        "the trace has settings that this version cannot read, and replaces by their defaults: "
        "age_weight=nan, limits=pdf"
    )


def test_missing_trace_file_is_named(tmp_path):
    with pytest.raises(TraceError, match="nowhere cannot be read: No such file or directory"):
        trace_file.read_trace(tmp_path / "nowhere")


def test_failed_write_keeps_the_older_trace(tmp_path, monkeypatch):
    path = tmp_path / "trace.jsonl"
    path.write_text("an older one")
    trace = Trace(1, (), (TracedJob("pdf", 0, 0), "no job"))
    with pytest.raises(AttributeError):
        trace_file.write_trace(trace, path)
    assert path.read_text() == "an older one"
    assert [each.name for each in tmp_path.iterdir()] == ["trace.jsonl"]


# -- CSV


def test_fleet_is_derived_from_a_csv_file(read):
    trace, warnings = read(
        "type,enqueued_us,claimed_us,ended_us,worker,outcome,tenant",
        "pdf,100,110,200,a,done,t1",
        "excel,100,120,200,a,failed,",
        "pdf,100,200,300,a,,",
        "pdf,100,130,140,b,,",
        "pdf,150,,,,,",
    )
    assert trace.workers == (TracedWorker("a", ("excel", "pdf"), 2), TracedWorker("b", ("pdf",), 1))
    assert [job.enqueued_us for job in trace.jobs] == [0, 0, 0, 0, 50], "the trace begins with its first job"
    assert [job.outcome for job in trace.jobs] == ["done", "failed", "done", "done", "pending"]
    assert (trace.jobs[0].tenant, trace.length_us, warnings) == ("t1", 200, [])


def test_csv_rows_equal_json_rows(read):
    as_json, _ = read(HEADER, {**JOB, "enqueued_us": 0}, {**JOB, "enqueued_us": -5, "mode": "demand", "priority": 7})
    as_csv, _ = read(
        "type,mode,priority,enqueued,claimed,started,ended,worker",
        "pdf,queued,0,0,2,3,4,w",
        "pdf,demand,7,-5,2,3,4,w",
    )
    assert as_csv.jobs == as_json.jobs


def test_truncated_last_csv_row_is_dropped_with_a_warning(read):
    trace, warnings = read("type,enqueued_us,worker", "pdf,1,w", "pdf,2", end="")
    assert len(trace.jobs) == 1
    assert "line 3, the last one, is cut, and left out" in warnings


#: A fleet with settings other than the defaults, and with facts that its jobs do not show.
FLEET = Trace(
    100 * S,
    (
        TracedWorker("w1", ("pdf", "excel"), 2),
        TracedWorker("w2", ("pdf", "index, of all"), 3, 0, 30 * S),
        TracedWorker("late", ("excel",), 1, 20 * S, 90 * S),
        TracedWorker("w2", ("pdf",), 1, 30 * S),
    ),
    tuple(
        TracedJob(
            type=("pdf", "excel")[n % 2],
            enqueued_us=n * S // 4,
            since_us=n * S // 4,
            on_demand=n % 5 == 0,
            priority=n % 3,
            tenant=("a", "b")[n % 7 == 0],
            claimed_us=n * S,
            started_us=n * S,
            ended_us=n * S + (1 + n % 4) * S,
            worker="w1",
        )
        for n in range(60)
    ),
    {"age_weight": "48", "limits": "type%3Apdf=2", "tenants": "b=max:1", "reserve_slots": "1"},
    ("index",),
)


def scheduled(trace):
    """Return *trace* with the claims of its fleet."""
    waiting = tuple(replace(job, fence=None, claimed_us=None, worker=None, outcome="pending") for job in trace.jobs)
    return with_claims(replace(trace, jobs=waiting), run_engine(scenario_of(trace)).schedule)


def test_csv_and_json_traces_and_their_replays_are_equal(tmp_path):
    trace = scheduled(FLEET)
    for name in ("t.jsonl", "t.CSV"):
        trace_file.write_trace(trace, tmp_path / name)
    assert (tmp_path / "t.CSV").read_text().splitlines()[4].startswith("# {")
    as_json, as_csv = trace_file.read_trace(tmp_path / "t.jsonl"), trace_file.read_trace(tmp_path / "t.CSV")
    assert as_csv == as_json == trace
    replayed = replay(as_csv)
    assert replayed == replay(as_json)
    assert replayed.fidelity == 1
    bare = tmp_path / "bare.csv"
    lines = (tmp_path / "t.CSV").read_text().splitlines(True)
    bare.write_text("".join(line for line in lines if not line.startswith("#")))
    assert replay(trace_file.read_trace(bare)).fidelity < 0.9, "the comments are used"


def test_csv_comments_describe_the_fleet(read):
    trace, _ = read(
        "# set age_weight=32",
        "#set limits.type:pdf=5",
        '# {"row":"join","worker":"w2","at_us":7,"types":["pdf"],"slots":2}',
        "type,enqueued_us,claimed_us,ended_us,worker",
        "pdf,5,6,9,w1",
    )
    assert (trace.settings["age_weight"], trace.settings["limits"]) == ("32", "type%3Apdf=5")
    assert trace.workers == (TracedWorker("w2", ("pdf",), 2, 7),), "comments with a worker list all workers"
    assert (trace.jobs[0].enqueued_us, trace.length_us) == (5, 9), "and times are relative to the trace"


def test_worker_derived_from_jobs_can_leave(read):
    trace, _ = read(
        '# {"row":"leave","worker":"w1","at_us":12}',
        "type,enqueued_us,claimed_us,ended_us,worker",
        "pdf,5,6,9,w1",
        "pdf,5,6,9,w2",
    )
    assert trace.workers == (TracedWorker("w1", ("pdf",), 1, 0, 12), TracedWorker("w2", ("pdf",), 1))


def test_csv_header_can_contain_only_settings(read):
    trace, _ = read(
        f'# {{"row":"header","schema":"{SCHEMA}","settings":{{"age_weight":"32"}}}}',
        "type,enqueued_us,claimed_us,ended_us,worker",
        "pdf,5,6,9,w1",
    )
    assert trace.settings == {"age_weight": "32"}
    assert (trace.workers, trace.length_us) == ((TracedWorker("w1", ("pdf",), 1),), 4)


def test_byte_order_mark_before_the_columns_is_ignored(read):
    assert len(read("\ufefftype,enqueued_us", "pdf,1")[0].jobs) == 1


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["type,enqueued_us,color", "pdf,1,red"], "line 1: unknown column 'color'"),
        (["type,enqueued_us,enqueued", "pdf,1,2"], "line 1: the column enqueued_us stands twice"),
        (["type,enqueued_us", "pdf," + "9" * 5_000], "line 2: enqueued_us must be a whole number, got: '9{79}$"),
        (["type,enqueued_us", "pdf,early"], "line 2: enqueued_us must be a whole number, got: 'early'"),
        (["type,enqueued_us", "pdf", "pdf,1"], "line 2: a row must have 2 cells, got: 1"),
        (["type,enqueued_us", "pdf,1,2"], "line 2: a row must have 2 cells, got: 3"),
        (["type,enqueued_us", 'pdf,"1"2'], "line 2: it is no row of a CSV file"),
        (["type,enqueued_us"], "the trace has no jobs"),
        (["# set age_weight", "type,enqueued_us"], "line 1: set must be NAME=VALUE"),
        (["# set age_weigth=3", "type,enqueued_us"], "line 1: set: .*age_weight"),
        (["# set priority_order=lower-first", "type,enqueued_us"], "line 1: set: a trace has its priorities"),
        (["# by hand", "type,enqueued_us"], "line 1: a comment must be set NAME=VALUE, or a row"),
        (["# " + "[" * 100_000, "type,enqueued_us"], "line 1: a comment must be set NAME=VALUE, or a row"),
        (["# set age_weight=3", '# {"row":"header"}', "type,enqueued_us"], "line 2: a comment must be"),
        (['# {"row":"header","schema":"x/2"}', "type,enqueued_us"], "line 1: the schema must be"),
        (['# {"row":"leave","worker":"w"}', "type,enqueued_us"], "line 1: at_us must be a whole number"),
        (["# set age_weight=3"], "line 2: the columns of a CSV file must come here"),
        (["# set age_weight=3", "type,enqueued_us,colour", "pdf,1,red"], "line 2: unknown column 'colour'"),
        (["# set age_weight=3", "type,enqueued_us", "pdf,early"], "line 3: enqueued_us must be a whole number"),
    ],
)
def test_invalid_csv_file_is_refused_with_its_line(read, lines, message):
    with pytest.raises(TraceError, match=message):
        read(*lines)
