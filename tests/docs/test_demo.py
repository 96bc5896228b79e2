"""`make demo`: the pipeline of `examples/`, run as a user runs it, on a small folder."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import psutil
import pytest

from examples.comparing import figures
from examples.pipeline import measure, plan

from ..support.made_once import made_once
from ..support.processes import wait_until

ROOT = Path(__file__).parents[2]
DOCUMENTS = ROOT / "examples" / "documents"

READABLE = [
    "invoice-2024-0001.pdf",
    "manual-wv-3.pdf",
    "employee-handbook.pdf",
    "price-list-2025.xlsx",
    "customers.csv",
]
UNREADABLE = ["contract-protected.pdf", "payroll-protected.xlsx", "scan-damaged.pdf"]

SIDES = ("affinity", "stock")


def command(*args):
    return [sys.executable, "-m", *map(str, args)]


def environment():
    """Return this process's environment without REDIS_URL, and with a terminal wide enough for the tables."""
    return {key: value for key, value in os.environ.items() if key != "REDIS_URL"} | {"COLUMNS": "120"}


def run(*args):
    done = subprocess.run(command(*args), cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return made_once(tmp_path_factory, "documents", _copy)


def _copy(folder):
    for name in READABLE + UNREADABLE:
        shutil.copy(DOCUMENTS / name, folder)
    (folder / "notes.txt").write_text("not for the demo")


@pytest.fixture(scope="module")
def demo(folder, tmp_path_factory):
    """Return the printed text of one run of the demo, and the folder of its results."""

    def make(out):
        code, text = run("examples.pipeline", "--docs", folder, "--out", out, "--seconds", 2)
        assert code == 0, text
        (out / "printed").write_text(text)

    out = made_once(tmp_path_factory, "demo", make)
    return (out / "printed").read_text(), out


@pytest.fixture(params=SIDES)
def side(request, demo):
    run = measure.Run(request.param, demo[1] / request.param)
    run.follow()
    return run


def cells(text, *first):
    """Return the cells of the table's rows that begin with these cells."""
    rows = [[cell.strip() for cell in line.strip("│ ").split("│")] for line in text.splitlines() if "│" in line]
    return [row for row in rows if tuple(row[: len(first)]) == first]


# -- the numbers


def test_both_sides_get_the_same_work(demo):
    affinity, stock = (demo[1] / side / "plan.json" for side in SIDES)
    assert affinity.read_bytes() == stock.read_bytes()


def test_every_document_is_finished_once(side):
    requests = plan.load(side.folder / "plan.json")
    reading = [job for job in side.jobs.values() if job.type != "index"]
    assert sorted((job.about, job.mode) for job in reading) == sorted((Path(r.path).name, r.mode) for r in requests)
    assert {job.about for job in reading if job.state != "SUCCESS"} == set(UNREADABLE)
    indexed = [job for job in side.jobs.values() if job.type == "index"]
    assert len(indexed) == sum(job.state == "SUCCESS" for job in reading)
    assert all(job.state == "SUCCESS" for job in indexed)


def test_a_job_runs_only_on_a_worker_that_serves_its_type(side):
    assert all(job.type in measure.WORKERS[job.worker] for job in side.jobs.values())


def test_the_tables_add_up(demo, side):
    text, _ = demo
    for type_ in measure.TYPES:
        for mode in measure.MODES:
            [row] = cells(text, type_, mode.replace("_", "-"))
            assert int(row[2]) == len(side.select(type_, mode))
    column = 1 + 3 * SIDES.index(side.side)
    [head] = [row for row in cells(text.replace("┃", "│"), "worker") if "pdf" in row]
    assert head[column : column + 3] == list(measure.TYPES)
    shares = [row for name in measure.WORKERS for row in cells(text, name) if len(row) == len(head)]
    for number, type_ in enumerate(measure.TYPES, column):
        percents = [int(row[number].rstrip(" %")) for row in shares if row[number] != "-"]
        assert sum(percents) == pytest.approx(100, abs=1), type_


def test_each_unreadable_document_has_an_error_line(demo):
    text, _ = demo
    assert "Not read: contract-protected.pdf: is protected by a password" in text
    assert "Not read: payroll-protected.xlsx: is protected by a password" in text
    assert re.search(r"Not read: scan-damaged\.pdf: is damaged \(.+\)", text)
    assert text.count("Not read:") == len(UNREADABLE)
    assert "Ignored: 1 other files (.txt)" in text


def test_comparison_text_matches_the_ratio():
    assert figures.compared(stock=12.0, ours=1.0) == "12 times as long on stock Celery"
    assert figures.compared(stock=1.5, ours=1.0) == "50 percent longer on stock Celery"
    assert figures.compared(stock=1.0, ours=2.0) == "50 percent shorter on stock Celery"
    assert figures.compared(stock=1.05, ours=1.0) == "about the same on both"
    assert figures.compared(stock=0.001, ours=0.011) == "about the same on both"


def test_percentile_is_a_measured_value():
    assert figures.percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.0
    assert figures.percentile([1.0, 2.0, 3.0, 4.0], 95) == 4.0
    assert figures.percentile([1.0], 100) == 1.0


def test_stock_side_uses_only_stock_queues(valkey, redis_client, tmp_path):
    """Each message is in the list of its queue, without a priority."""
    publish = (
        "from examples.pipeline.publish import pipeline\n"
        "from examples.pipeline.tasks import index_document\n"
        "pipeline('a.pdf', 'on_demand').apply_async()\n"
        "pipeline('a.xlsx', 'queued').apply_async()\n"
        "index_document.delay({})"
    )
    env = environment() | {"DEMO_TRANSPORT": "stock", "REDIS_URL": valkey.url, "DEMO_FOLDER": str(tmp_path)}
    subprocess.run([sys.executable, "-c", publish], cwd=ROOT, env=env, check=True, timeout=60)
    lists = sorted(key for key in redis_client.scan_iter() if redis_client.type(key) == b"list")
    assert lists == [b"excel", b"index", b"pdf"]
    assert {json.loads(redis_client.lindex(key, 0))["properties"]["priority"] for key in lists} <= {0, None}


# -- files and processes


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.bars, self.links, self.sections = [], 0, [], []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.links += [attrs[name] for name in ("src", "href") if name in attrs]
        self.bars += tag == "i" and "wait" not in attrs["class"].split()
        if tag == "section":
            self.sections.append(attrs.get("id"))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_page_shows_every_job_and_is_self_contained(demo):
    text, out = demo
    [path] = re.findall(r"file://(\S+\.html)", text)
    assert Path(path) == (out / "timeline.html").resolve()
    page = Page()
    page.feed(Path(path).read_text(encoding="utf-8"))
    assert page.open == []
    assert page.links == []
    assert page.sections[:2] == list(SIDES)
    runs = [measure.Run(name, out / name) for name in SIDES]
    for run_ in runs:
        run_.follow()
    assert page.bars == sum(len(run_.jobs) for run_ in runs)


def test_the_index_can_be_searched(demo):
    _, out = demo
    code, text = run("examples.pipeline.search", "railway", "sinker", "--out", out)
    assert (code, text.partition(",")[0]) == (0, "manual-wv-3.pdf")
    code, text = run("examples.pipeline.search", "Kestrel", "--out", out)
    assert (code, text.partition(",")[0]) == (0, "customers.csv")
    code, text = run("examples.pipeline.search", "hippopotamus", "--out", out)
    assert (code, text) == (1, "No page or sheet contains hippopotamus.\n")


def test_search_without_an_index_suggests_the_demo(tmp_path):
    code, text = run("examples.pipeline.search", "tide", "--out", tmp_path)
    assert code == 2
    assert "run python -m examples.pipeline first" in text


# -- faults


def test_a_folder_without_documents_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("not for the demo")
    code, text = run("examples.pipeline", "--docs", tmp_path)
    assert code == 2
    assert text == f"{tmp_path}: no documents here. Put some .pdf, .xlsx, .xlsm, .csv files into it.\n"


def test_a_folder_that_does_not_exist_is_refused(tmp_path):
    code, text = run("examples.pipeline", "--docs", tmp_path / "nowhere")
    assert (code, text) == (2, f"{tmp_path / 'nowhere'}: there is no such folder.\n")


@pytest.mark.parametrize(
    ("number", "exit_code"),
    [
        (signal.SIGINT, 130),
        pytest.param(
            signal.SIGKILL,
            -9,
            marks=pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the children"),
        ),
    ],
)
def test_no_process_outlives_the_demo(folder, tmp_path, number, exit_code):
    args = command("examples.pipeline", "--docs", folder, "--out", tmp_path, "--seconds", 30)
    with subprocess.Popen(args, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True) as demo:
        side = measure.Run("affinity", tmp_path / "affinity")

        def is_at_work():
            side.follow()
            return side.ready == set(measure.WORKERS) and any(job.started for job in side.jobs.values())

        wait_until(is_at_work, 60, "the demo is at work")
        children = psutil.Process(demo.pid).children(recursive=True)
        assert len(children) >= 2 * len(measure.WORKERS)
        demo.send_signal(number)
        text, _ = demo.communicate(timeout=30)
    assert demo.returncode == exit_code
    if number == signal.SIGINT:
        assert "Stopped. All processes of the example have ended." in text
    wait_until(lambda: not any(map(is_alive, children)), 10, "all processes of the demo are gone")


def is_alive(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
