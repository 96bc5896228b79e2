"""The web UI in headless Chromium: its views and actions, on desktop and phone screens, in light and dark mode."""

import json
import os
import re
import shutil
import sys
from dataclasses import replace

import pytest
import redis

from celery_affinity.embedded import EmbeddedServer
from celery_affinity.lab.trace import TracedJob
from celery_affinity.lab.trace_file import write_trace
from celery_affinity.reports.history import Point, TypePoint, checksum_of
from celery_affinity.scheduler.scheduler import Scheduler
from celery_affinity.scheduler.server_info import check_schema
from celery_affinity.schema.job_record import NewJob
from celery_affinity.schema.keys import Keys
from celery_affinity.settings.cohorts import cohort_map, map_text, shown_cohorts
from celery_affinity.web import page
from examples.made_up_trace import make_trace

from ..support.apps import APP
from ..support.messages import wire
from ..support.processes import Process, wait_until
from ..support.scripted_fleet import ScriptedFleet

pytestmark = pytest.mark.docs

FILES = page._FILES

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


# -- its files


def test_only_known_files_are_served_with_their_types(valkey, web):
    for path in FILES.rglob("*.*"):
        name = path.relative_to(FILES).as_posix()
        found = web.get(f"/page/{name}")
        assert (found.status_code, found.headers["content-type"]) == (200, page._TYPES[path.suffix])
        assert found.content == path.read_bytes()
    assert web.get("/").content == (FILES / "index.html").read_bytes()
    for name in ("none.js", "../__init__.py", "%2e%2e/news.py", "views", ""):
        assert web.get(f"/page/{name}").status_code == 404


def test_files_use_no_other_host_and_no_missing_name():
    for path in FILES.rglob("*.*"):
        if path.parent.name == "vendor":
            continue
        text = path.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.search(r"https?://|//[a-z]", text.replace("// ", "")), path
    index = (FILES / "index.html").read_text()
    for name in re.findall(r'(?:src|href)="page/([^"]+)"', index):
        assert (FILES / name).is_file()
    for path in FILES.rglob("*.js"):
        for name in re.findall(r'from "(\.[^"]+)"', path.read_text()):
            assert (path.parent / name).resolve().is_file()


def test_page_gets_its_role(valkey, serve):
    assert serve().get("/api/me").json() == {"app": "typed", "role": "admin", "sees_values": True}
    assert serve(read_only=True).get("/api/me").json()["role"] == "read"
    tokens = {"t" * 20: "submit"}
    assert serve(tokens=tokens).get("/api/me").status_code == 401
    assert serve(tokens=tokens, token="t" * 20).get("/api/me").json()["role"] == "submit"


# -- in a browser


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


def serve(broker_url, *options, **env):
    """Start the web server with *options*. Return its URL."""
    command = [sys.executable, "-m", "celery", "-A", APP, "affinity", "web", "--port", "0", *options]
    server = Process("web", command, {"BROKER_URL": broker_url, "LEDGER": os.devnull, "PYTHONUNBUFFERED": "1", **env})
    return wait_until(lambda: re.search(r"web ready on (\S+)", server.log()), 30, f"it serves: {server.log()}")[1]


@pytest.fixture
def url(valkey, redis_client):
    return serve(valkey.url)


@pytest.fixture
def busy(redis_client):
    """A fleet with a running job and waiting jobs, one of an unserved type."""
    fleet = ScriptedFleet(Scheduler(redis_client, Keys()))
    fleet.join("worker", "pdf", "excel")
    fleet.publish("runs", "pdf")
    fleet.publish("waits", "pdf", priority=3)
    fleet.publish("alone", "drawing")
    return fleet


class Screen:
    """A browser page, with the `errors` of its console."""

    def __init__(self, browser, url, width=1300, height=900, scheme="light", scripts=()):
        self.errors = []
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        context.set_default_timeout(20_000)
        self.page = context.new_page()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._hear)
        for script in scripts:
            self.page.add_init_script(script)
        self.page.goto(url)
        self.close = context.close

    def _hear(self, message):
        if "Content Security Policy" in message.text:
            self.errors.append(message.text)

    def after_news(self, number, name="news"):
        """Return when the server has sent *number* more events of this *name*, to the page as well."""
        self.page.evaluate(
            """async ([number, name]) => {
                const reader = (await fetch("api/events")).body.pipeThrough(new TextDecoderStream()).getReader();
                let told = ""; // the first event that came is that of before
                while (told.split(`event: ${name}\n`).length - 2 < number) told += (await reader.read()).value;
                await reader.cancel();
            }""",
            [number, name],
        )

    def row(self, table, text):
        return self.page.locator("table", has=self.page.locator("caption", has_text=table)).locator("tr", has_text=text)

    def sees(self, text):
        self.page.get_by_text(text).first.wait_for()


@pytest.fixture
def show(browser):
    """Open pages. After the test, check that none had an error."""
    screens = []

    def show(url, **options):
        screens.append(Screen(browser, url, **options))
        return screens[-1]

    yield show
    for screen in screens:
        screen.close()
    assert not [error for screen in screens for error in screen.errors]


@pytest.fixture
def look(show, url):
    return lambda path="#/", **options: show(url + path, **options)


def test_overview_shows_the_fleet(busy, look):
    screen = look()
    screen.row("Types", "drawing").get_by_text("no live worker serves it").wait_for()
    cells = screen.row("Types", "pdf").locator("td").all_inner_texts()
    assert cells[:2] == ["pdf", "1"]
    screen.page.locator(".headline.bad").get_by_text("No worker serves drawing.").wait_for()
    busy.publish("more", "pdf")
    screen.row("Types", "pdf").locator("td").nth(1).get_by_text("2", exact=True).wait_for()


def test_tenants_are_shown_if_there_are_any(busy, look):
    screen = look()
    tenants = screen.page.locator("table", has=screen.page.locator("caption", has_text="Tenants"))
    screen.row("Types", "pdf").first.wait_for()
    assert not tenants.is_visible()
    busy.scheduler.configure({"tenants": "acme=max:none,min:2,weight:3"})
    for number in range(2):
        busy.publish(f"acme{number}$", "drawing", rules="key=tenant%3Aacme quota=settings")
    row = screen.row("Tenants", "acme")
    row.get_by_text("below its minimum: its jobs start first").wait_for()
    cells = row.locator("td").all_inner_texts()
    assert (cells[:2], cells[4:6]) == (["acme", "0"], ["at least 2, any number; weight 3", "2"])
    row.get_by_role("link").click()
    screen.row("Jobs", "task-acm").first.get_by_text("acme", exact=True).wait_for()
    assert screen.page.get_by_role("textbox", name="Key").input_value() == "tenant:acme"


def test_jobs_without_a_tenant_have_a_row_and_a_turn(busy, look):
    busy.scheduler.configure({"tenant_turns": "share"})
    busy.publish("acme$", "drawing", rules="key=tenant%3Aacme quota=settings")
    screen = look()
    screen.row("Tenants", "(no tenant)").get_by_text("any number").wait_for()
    screen.page.goto(re.sub("#.*", "#/job/task-waits", screen.page.url))
    screen.sees(re.compile("^[0-9] of [0-9] turns? of tenants for its slots come before it\\.$"))


def test_type_is_paused_after_a_confirmation_and_resumed(busy, look):
    screen = look()
    screen.row("Types", "pdf").get_by_role("button", name="Pause").click()
    dialog = screen.page.get_by_role("dialog")
    dialog.get_by_text("No job of pdf starts until the type is resumed").wait_for()
    dialog.get_by_label("Reason").fill("db migration")
    dialog.get_by_role("button", name="Pause").click()
    screen.sees("pdf is paused")
    screen.row("Types", "pdf").get_by_role("button", name="Resume").click()
    screen.page.get_by_role("dialog").get_by_role("button", name="Back").click()
    screen.page.goto(screen.page.url.replace("#/", "#/rules"))
    screen.row("Pauses", "db migration").wait_for()


def test_job_is_found_by_id_explained_and_cancelled(busy, look):
    screen = look()
    screen.page.keyboard.press("/")
    screen.page.keyboard.type("task-waits")
    screen.page.keyboard.press("Enter")
    screen.sees("Why it waits")
    screen.page.get_by_role("img", name=re.compile("score .*: priority ")).wait_for()
    screen.page.get_by_role("button", name="Cancel").click()
    screen.page.get_by_role("dialog").get_by_text("Its caller gets REVOKED").wait_for()
    screen.page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    screen.page.locator(".state.revoked").wait_for()


def test_preemption_is_shown_for_both_jobs(busy, look):
    scheduler, key = busy.scheduler, busy.scheduler.keys.key
    scheduler.configure({"tenants": "beta=max:none,min:1", "preemption_delay_us": "0"})
    busy.join("gpu", "video")
    scheduler.client.hset(key("worker", "gpu"), "stops", "force")
    busy.publish("gives$", "video", rules="key=tenant%3Aacme quota=settings preemptible=1")
    (claim,) = busy.inbox("gpu")
    scheduler.client.hset(key("job", "gives$"), "started", busy.now_us)
    busy.publish("takes$", "video", rules="key=tenant%3Abeta quota=settings")
    scheduler.tick()
    screen = look("#/job/task-gives%24")
    screen.sees(re.compile("^for tenant beta, below its minimum of 1: .* s of 10 s grace left$"))
    taking = look("#/job/task-takes%24")
    taking.row("Jobs that are stopped for it", "gpu@host").get_by_role("link").wait_for()
    busy.end("gpu", claim, outcome="preempted 41000000")
    screen.sees(
        re.compile("^on gpu@host at .*, after 41 s, for tenant beta, below its minimum of 1; 1 time, of 3 at most$")
    )


def test_hint_holders_and_worker_priorities_are_shown(busy, look):
    busy.join("cold", "video", priority=3, settings={"locality_bonus": 80})
    busy.publish("first~", "video", rules="near=model%3Aa")
    busy.end("cold", *busy.inbox("cold"))
    busy.publish("other", "video")
    busy.publish("again~", "video", rules="near=model%3Aa")
    busy.publish("new~", "video", rules="near=model%3Ab")
    screen = look("#/job/task-again~")
    screen.row("Workers that hold its hint", "cold@host").get_by_text("ago").wait_for()
    screen.sees("The job gets 80 points more there.")
    screen.page.locator("dd", has_text="model:a").wait_for()
    screen.page.goto(screen.page.url.replace("again~", "new~"))
    screen.sees("No worker holds its hint.")
    screen.page.goto(screen.page.url.replace("job/task-new~", "workers"))
    screen.row("Workers", "cold@host").get_by_text("priority 3").wait_for()


def test_waiting_job_is_moved(busy, look):
    screen = look("#/job/task-waits")
    for button, label, value in (("Move", "Type", "movies"), ("Priority", "Priority", "7"), ("On demand", None, None)):
        screen.page.get_by_role("button", name=button, exact=True).click()
        dialog = screen.page.get_by_role("dialog")
        dialog.get_by_text("The job keeps its enqueue time").wait_for()
        if label:
            dialog.get_by_label(label).fill(value)
        dialog.get_by_role("button", name=button, exact=True).click()
        dialog.wait_for(state="hidden")
    screen.page.get_by_text("on demand, priority 7").wait_for()
    screen.page.locator("dd", has_text="movies").wait_for()


def test_all_views_are_usable_by_keyboard(busy, look):
    screen = look()
    views = {"2": "Claimed jobs", "3": "Why jobs are blocked", "4": "Settings", "5": "Dead letters"}
    for key, text in {**views, "6": "Jobs", "1": "Types"}.items():
        screen.page.keyboard.press(key)
        screen.page.locator("caption", has_text=text).wait_for()
    screen.page.keyboard.press("7")
    screen.sees("celery affinity lab record --for 10m --output DIR/trace.jsonl")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_screen_shows_everything(busy, look, scheme):
    screen = look(width=390, height=844, scheme=scheme)
    for path in ("#/", "#/workers", "#/next", "#/rules", "#/jobs", "#/lab", "#/job/task-waits"):
        screen.page.goto(re.sub("#.*", path, screen.page.url))
        screen.page.locator("main section").first.wait_for()
        assert screen.page.evaluate("document.documentElement.scrollWidth") <= 390, path


#: Returns the height of the header, and the rows of lists whose cells are in more than two lines.
LINES = """() => {
  const height = (element) => element.getBoundingClientRect().height;
  const shown = (row) => [...row.cells].filter((cell) => cell.checkVisibility());
  const isLong = (row) => height(row) > 80 || shown(row).some((cell) => height(cell) > 40);
  const rows = [...document.querySelectorAll("tbody tr")].filter((row) => row.checkVisibility());
  const long = rows.filter(isLong).map((row) => row.innerText);
  return [document.querySelector("header").getBoundingClientRect().height, rows.length, long];
}"""


def test_lists_on_a_phone_are_cards_of_two_lines(busy, look):
    busy.scheduler.configure({"tenants": "acme=max:4,min:2", "keep_us": "3600000000"})
    busy.publish("acme$", "drawing", rules="key=tenant%3Aacme quota=settings")
    busy.scheduler.pause("type:excel", why="the migration of the database, until the new index is built")
    busy.bury("dead", "mail", outcome="rejected ValueError: " + "a long reason " * 10)
    busy.join("worker", "pdf", "excel")
    busy.join("gpu", "video", "a-type-with-a-long-name", slots=30)
    busy.publish("fails", "video")
    busy.end("gpu", *busy.inbox("gpu"), outcome="failed ValueError: " + "no frame " * 20, inline=False)
    screen = look(width=390, height=844)
    seen = 0
    for path in ("", "workers", "next", "rules", "dead", "jobs", "tasks", "job/task-waits", "worker/gpu@host"):
        screen.page.goto(re.sub("#.*", f"#/{path}", screen.page.url))
        screen.page.locator("tbody tr:visible").first.wait_for()
        screen.after_news(1)
        header, rows, long = screen.page.evaluate(LINES)
        assert header < 56, "one line"
        assert long == [], path
        seen += rows
    assert seen > 50


#: Returns the visible texts whose contrast is below WCAG AA, and the fields and buttons without a name.
FLAWS = """() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = channels(colour).slice(0, 3).map((c) => linear(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if ((channels(colour)[3] ?? 1) > 0) return colour;
    }
    return getComputedStyle(document.body).backgroundColor;
  };
  const flaws = [];
  for (const element of document.querySelectorAll("body *")) {
    const text = [...element.childNodes].filter((each) => each.nodeType === 3).map((each) => each.data.trim()).join("");
    if (!text || !element.checkVisibility() || element.closest("option, noscript")) continue;
    const style = getComputedStyle(element);
    const [a, b] = [light(style.color), light(ground(element))].sort((x, y) => y - x);
    const size = parseFloat(style.fontSize);
    const least = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    if ((a + 0.05) / (b + 0.05) < least) flaws.push(`${text}: ${((a + 0.05) / (b + 0.05)).toFixed(2)}`);
  }
  for (const field of document.querySelectorAll("input, select, button, a")) {
    const name = field.ariaLabel || field.textContent.trim() || field.labels?.[0]?.textContent.trim();
    if (!name && field.checkVisibility()) flaws.push(`without a name: ${field.outerHTML}`);
  }
  return flaws;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_views_meet_wcag_aa(busy, look, scheme):
    busy.scheduler.configure({"tenants": "acme=max:4,min:2", "age_weight": "17", "keep_us": "3600000000"})
    busy.publish("acme$", "drawing", rules="key=tenant%3Aacme quota=settings")
    busy.scheduler.pause("type:pdf", why="db migration")
    add_points(busy.scheduler.client, 10, *range(9))
    busy.bury("buried", "mail")
    screen = look(scheme=scheme)
    views = (
        "",
        "workers",
        "worker/worker@host",
        "tasks",
        "next",
        "rules",
        "dead",
        "jobs/type=pdf",
        "lab",
        "job/task-waits",
    )
    for path in views:
        screen.page.goto(re.sub("#.*", f"#/{path}", screen.page.url))
        screen.page.locator("main section").first.wait_for()
        screen.after_news(1)
        assert screen.page.evaluate(FLAWS) == [], path
    screen.page.goto(re.sub("#.*", "wall", screen.page.url))
    screen.page.locator("td").first.wait_for()
    assert screen.page.evaluate(FLAWS) == []


def test_recent_waits_are_shown(show, url, busy):
    screen = show(url)
    screen.row("Types", "pdf").wait_for()  # the first sample, which later samples are compared with
    (claim,) = busy.inbox("worker")
    busy.end("worker", claim)
    busy.hand_over("worker")
    row = screen.row("Waits and run times", "pdf")
    row.get_by_text("waited, queued").wait_for()
    row.get_by_text("ran").wait_for()


def test_bounded_type_shows_its_fill_and_policy(valkey, show, busy):
    bounds = {"affinity_max_pending": {"pdf": 4, "drawing": 1}}
    screen = show(serve(valkey.url, CONF=json.dumps(bounds)))
    screen.row("Types", "pdf").get_by_text("25 % full: 4 may wait, further calls are refused").wait_for()
    screen.row("Types", "drawing").get_by_text("100 % full: 1 may wait, further calls are refused").wait_for()
    busy.publish("more", "pdf")
    screen.row("Types", "pdf").get_by_text("50 % full: 4 may wait").wait_for()


def test_cohorts_are_shown_with_outages_and_shared_workers(valkey, show, redis_client):
    cohorts = {"ml": {"types": ["gpu*"]}, "eu": {"types": ["eu.*"], "url": "redis://127.0.0.1:1/0"}}
    check_schema(redis_client, Keys(), shown_cohorts(map_text(cohort_map(cohorts))))  # like the fleet's first process
    for cohort, type_ in (("default", "pdf"), ("ml", "gpu")):
        fleet = ScriptedFleet(Scheduler(redis_client, Keys(cohort=cohort)))
        fleet.join("both", type_)
        for number in range(2):
            fleet.publish(f"{type_}-{number}", type_)
    screen = show(serve(valkey.url, CONF=json.dumps({"affinity_cohorts": cohorts})))
    screen.row("Types", "gpu").get_by_text("cohort ml").wait_for()
    screen.row("Types", "pdf").get_by_text("cohort default").wait_for()
    screen.page.locator(".tile.bad", has_text="cohort eu").get_by_text("down").wait_for()
    screen.page.locator(".tile", has_text=re.compile("^1workers$")).wait_for()
    screen.page.get_by_text("1 worker, up to date").wait_for()
    cells = {name: screen.row("Cohorts", name).locator("td").all_inner_texts() for name in ("default", "ml", "eu")}
    assert cells["ml"][:7] == ["ml", "1", "1", "0", "0", "1", "0 of 1"]
    assert "its server does not answer" in cells["eu"][7]
    choice = screen.page.get_by_role("combobox", name="Cohort")
    choice.select_option("ml")
    screen.row("Types", "pdf").wait_for(state="hidden")
    screen.page.locator(".tile", has_text=re.compile("^1pending$")).wait_for()
    assert screen.row("Types", "gpu").is_visible()
    assert screen.row("Cohorts", "default").is_visible()
    assert not screen.page.locator(".tile.bad", has_text="cohort eu").is_visible()
    for view, table, its, of_others in (("workers", "Workers", "gpu", "pdf"), ("next", "Next", "gpu", "pdf")):
        screen.page.goto(screen.page.url.partition("#")[0] + f"#/{view}")
        screen.row(table, its).get_by_text("cohort ml").wait_for()
        assert screen.row(table, of_others).count() == 0
    screen.page.reload()
    screen.row("Next", "gpu").wait_for()
    assert choice.input_value() == "ml", "it is kept"
    screen.page.goto(screen.page.url.partition("#")[0] + "#/jobs")
    screen.row("Jobs", "gpu").first.wait_for()
    assert screen.row("Jobs", "pdf").count() == 0
    choice.select_option("")
    screen.row("Jobs", "pdf").first.wait_for()
    choice.select_option("default")
    screen.row("Jobs", "gpu").first.wait_for(state="hidden")
    screen.page.goto(screen.page.url.partition("#")[0] + "#/lab")
    assert choice.is_disabled(), "a trace is of one"


def test_page_shows_an_outage_and_its_end(show):
    with EmbeddedServer() as server:
        screen = show(serve(server.url))
        _publish(server, "drawing")
        screen.row("Types", "drawing").wait_for()
        server.kill()
        screen.page.get_by_role("alert").get_by_text("The broker does not answer").wait_for()
        assert screen.row("Types", "drawing").is_visible(), "the last known state stays"
        server.start()
        _publish(server, "movies")
        screen.row("Types", "movies").wait_for()
        screen.page.get_by_text("The broker does not answer").wait_for(state="hidden")


def _publish(server, type_):
    with redis.Redis.from_url(server.url) as client:
        ScriptedFleet(Scheduler(client, Keys())).publish(f"job of {type_}".replace(" ", "-"), type_)


def test_lab_sliders_show_the_effect_of_slots_and_limits(valkey, show, tmp_path):
    made = make_trace(300)
    waits = TracedJob("ghost", enqueued_us=made.length_us, since_us=made.length_us)
    write_trace(replace(made, jobs=(*made.jobs, waits)), tmp_path / "night.jsonl")
    screen = show(serve(valkey.url, "--traces", str(tmp_path)) + "#/lab", width=390, height=844)
    screen.sees("100.00 %: 300 of 300 claims are replayed")
    screen.sees("1 job as the recording ended, 1 in the replay")
    waits, recorded = screen.row("Waits", "ocr"), screen.row("Waits", "ocr").inner_text()
    changed = screen.row("With the change", "ocr")
    slots, limit = (screen.page.get_by_role("slider", name=name) for name in ("Slots of [pdf,xls]", "Limit of pdf"))
    assert (slots.input_value(), limit.get_attribute("aria-valuetext")) == ("4", "no limit")
    slots.press("Home")  # the keyboard moves a slider
    screen.row("Slots", "pdf, xls").get_by_text("4 → 0").wait_for()
    for _ in range(6):
        slots.press("ArrowRight")
    with screen.page.expect_request(lambda asked: '"limits.type:pdf":"5"' in (asked.post_data or "")) as asked:
        for _ in range(10):
            limit.press("ArrowLeft")
    assert asked.value.post_data_json == {"add": ["[pdf,xls]:2"], "remove": [], "set": {"limits.type:pdf": "5"}}
    screen.row("Slots", "pdf, xls").get_by_text("4 → 6").wait_for()
    assert limit.get_attribute("aria-valuetext") == "5 at once"
    screen.row("With the change", "pdf").first.get_by_text("longer").first.wait_for(state="attached")
    changed.get_by_text("shorter").first.wait_for(state="attached")
    assert " → " in changed.inner_text()
    assert waits.inner_text() == recorded
    assert screen.page.evaluate("document.documentElement.scrollWidth") <= 390
    screen.page.get_by_role("button", name="As recorded").click()
    screen.sees("As recorded: move a slider.")
    assert (changed.count(), slots.input_value()) == (0, "4")


def test_task_names_are_escaped(busy, look):
    busy.scheduler.publish(NewJob("evil", "pdf", "message", task_id="evil", task_name="<img src=x onerror=alert(1)>"))
    screen = look("#/next")
    screen.sees("<img src=x onerror=alert(1)>")
    assert screen.page.locator("main img").count() == 0


def row_of(screen, table, text, name):
    return screen.row(table, text).get_by_role("button", name=name, exact=True)


def confirm(screen, name, words=""):
    dialog = screen.page.locator("#confirm")
    dialog.get_by_text(words).first.wait_for()
    dialog.get_by_role("button", name=name, exact=True).click()


def test_bulk_cancel_shows_the_number_of_jobs_first(busy, look):
    stamped = busy.made([f"job{number}" for number in range(3)], "drawing", stamps=["customer:acme"])
    busy.scheduler.publish(*stamped)
    screen = look("#/jobs")
    screen.page.get_by_label("Stamp").fill("customer=acme")
    screen.page.keyboard.press("Enter")
    screen.sees("3 jobs found.")
    screen.page.get_by_role("button", name="Cancel all that match").click()
    confirm(screen, "Cancel all that match", "3 jobs match: stamp customer=acme.")
    screen.sees("3 jobs done")
    screen.page.goto(re.sub("#.*", "#/job/task-job0", screen.page.url))
    screen.page.locator(".state.revoked").wait_for()


def test_dead_letters_are_replayed_and_deleted_by_group(busy, look):
    busy.join("mailer", "mail", slots=3)
    for number in range(3):
        busy.publish(f"rejected{number}", "mail")
    busy.end("mailer", *busy.inbox("mailer"), outcome="rejected")
    busy.join("crashes", "film")
    busy.publish("lost", "film")
    busy.ack("crashes", *busy.inbox("crashes"))
    busy.scheduler.leave("crashes")
    screen = look("#/dead")
    row_of(screen, "By reason and task", "rejected", "Run again 3").click()
    confirm(screen, "Run again 3", "published again with the same arguments")
    screen.sees("3 of 3 dead letters done")
    screen.row("By reason and task", "rejected").wait_for(state="detached")
    assert sum(busy.state(f"rejected{number}") != "dead" for number in range(3)) == 3
    screen.page.get_by_label("Reason").select_option("lost")
    row_of(screen, "By reason and task", "lost", "Delete 1").click()
    confirm(screen, "Delete 1", "This cannot be undone")
    screen.sees("There are no dead letters.")


def test_consecutive_next_jobs_of_a_type_are_one_row(busy, look):
    for number in range(4):
        busy.publish(f"more{number}", "pdf", priority=3)
    screen = look("#/next")
    row = screen.row("Next", "task-wai")
    row.get_by_text("1 to 5").wait_for()
    assert row.locator("td").all_inner_texts()[1] == "5"
    assert screen.row("Next", "task-more").count() == 0


def test_jobs_have_tenants_an_order_and_counts_by_argument(busy, look):
    for name in ("alone", "other", "acme"):
        busy.publish(f"called-{name}", "drawing", message=wire(f"task-called-{name}", args=(name,)))
    busy.publish("acme$", "drawing", rules="key=tenant%3Aacme quota=settings", priority=7)
    screen = look("#/jobs/type=drawing")
    assert screen.row("Jobs", "task-acme").locator("[data-name=tenant]").inner_text() == "acme"
    first = screen.page.locator("tbody tr").first
    screen.page.get_by_label("Order").select_option("highest priority")
    first.get_by_text("acme", exact=True).wait_for()
    screen.page.get_by_label("Order").select_option("oldest first")
    first.get_by_text("task-alo").wait_for()
    screen.page.get_by_label("Argument", exact=True).fill("args[0]=acme")
    screen.page.get_by_role("button", name="Count").click()
    screen.sees("1 job that can be cancelled has args[0]=acme in its arguments")


def test_rules_are_searched_and_changed_settings_come_first(busy, look):
    busy.scheduler.configure({"age_weight": "17"})
    screen = look("#/rules")
    settings = screen.page.locator("table", has=screen.page.locator("caption", has_text="Settings")).locator("tbody tr")
    first = settings.first
    first.get_by_text("affinity_age_weight").wait_for()
    first.get_by_text("17 points/s").wait_for()
    first.get_by_text("this value wins over app.conf until it is reset to 16 points/s").wait_for()
    screen.row("Settings", "affinity_dead_max").get_by_text("default", exact=True).wait_for()
    screen.page.get_by_label("Search rules").fill("KEEP")
    first.get_by_text("affinity_keep", exact=True).wait_for()
    assert settings.count() == 2


def test_job_page_draws_the_time_in_each_state(busy, look):
    (claim,) = busy.inbox("worker")
    busy.end("worker", claim, inline=False)
    key = busy.scheduler.keys.key("job", "runs")
    ended_us = int(busy.scheduler.client.hget(key, "ended"))
    busy.scheduler.client.hset(key, mapping={"enqueued": ended_us - 9_000_000, "claimed": ended_us - 2_000_000})
    screen = look("#/job/task-runs")
    screen.page.get_by_role("img", name="pending 7.0 s, running 2.0 s").wait_for()
    screen.page.goto(re.sub("#.*", "#/job/task-alone", screen.page.url))
    screen.page.locator(".timeline").get_by_text("no live worker serves type").wait_for()


def test_pause_of_an_unserved_type_shows_a_warning(busy, look):
    screen = look()
    row_of(screen, "Types", "drawing", "Pause").click()
    confirm(screen, "Pause", "No job of drawing starts")
    screen.sees("drawing is paused; no live worker serves type 'drawing'")


def test_no_button_changes_all_jobs_of_the_fleet(busy, look):
    screen = look("#/jobs")
    screen.sees("3 jobs found.")
    assert not screen.page.get_by_role("button", name="Cancel all that match").is_visible()
    screen.page.goto(re.sub("#.*", "#/jobs/type=pdf", screen.page.url))
    screen.page.get_by_role("button", name="Cancel all that match").wait_for()


def test_all_types_are_paused_and_resumed_with_a_reason(busy, look):
    screen = look("#/rules")
    screen.page.get_by_role("button", name="Pause all types").click()
    screen.page.locator("#confirm").get_by_label("Reason").fill("db migration")
    confirm(screen, "Pause all types", "No job of any type starts")
    screen.row("Pauses", "all types").wait_for()
    screen.page.keyboard.press("1")
    screen.row("Types", "drawing").get_by_text("paused, as all types are,").wait_for()
    screen.row("Types", "drawing").get_by_text("db migration").wait_for()
    screen.page.keyboard.press("4")
    row_of(screen, "Pauses", "all types", "Resume").click()
    confirm(screen, "Resume", "Jobs of all types start again")
    screen.sees("Nothing is paused.")


def test_paused_key_offers_a_resume(busy, look):
    for number in range(2):
        busy.publish(f"keyed{number}!", "pdf", rules="key=city%3AHH limit=1")
    busy.scheduler.pause("key:city%3AHH")
    screen = look("#/rules")
    screen.row("Keys", "city:HH").get_by_text("paused").wait_for()
    row_of(screen, "Keys", "city:HH", "Resume").click()
    confirm(screen, "Resume", "Jobs of this key start again")
    row_of(screen, "Keys", "city:HH", "Pause").wait_for()
    assert busy.scheduler.reader.hash("pauses") == {}


def test_job_blocked_by_a_pause_offers_a_resume(busy, look):
    busy.scheduler.pause("type:pdf", why="db migration")
    screen = look("#/next")
    screen.row("Next", "task-wai").get_by_text("paused").wait_for()
    screen.page.goto(re.sub("#.*", "#/job/task-waits", screen.page.url))
    screen.sees("db migration")
    screen.page.get_by_role("button", name="Resume", exact=True).click()
    confirm(screen, "Resume", "Jobs of this type start again")
    screen.page.get_by_role("button", name="Resume", exact=True).wait_for(state="detached")
    assert busy.scheduler.reader.hash("pauses") == {}


def test_setting_is_changed_and_reset(busy, look):
    screen = look("#/rules")
    row_of(screen, "Settings", "affinity_age_weight", "Change").click()
    screen.page.locator("#confirm").get_by_label("Value").fill("none at all")
    confirm(screen, "Change", "applies to the whole fleet")
    screen.sees("affinity_age_weight must be a number of points a second")
    row_of(screen, "Settings", "affinity_age_weight", "Change").click()
    screen.page.locator("#confirm").get_by_label("Value").fill("17")
    confirm(screen, "Change")
    screen.row("Settings", "affinity_age_weight").get_by_text("changed at run time").wait_for()
    row_of(screen, "Settings", "affinity_age_weight", "Reset").click()
    confirm(screen, "Reset", "applies again to the whole fleet")
    screen.row("Settings", "affinity_age_weight").get_by_text("changed at run time").wait_for(state="hidden")


def test_workers_view_shows_the_wanted_slots(busy, look):
    screen = look("#/workers")
    screen.row("Slots wanted", "drawing").get_by_text("1 more wanted").wait_for()


def test_drained_worker_can_be_resumed_but_no_leaving_one(busy, look):
    busy.join("drained")
    busy.join("ends", "pdf")
    busy.scheduler.sync("ends", {}, slots=1, other=0, draining=True)
    screen = look("#/workers")
    row_of(screen, "Workers", "drained", "Resume").click()
    confirm(screen, "Back", "takes jobs of its queues again")
    screen.row("Workers", "ends").get_by_text("draining: it ends after its running jobs").wait_for()
    assert screen.row("Workers", "ends").get_by_role("button").count() == 0
    row_of(screen, "Workers", "excel", "Drain").click()
    confirm(screen, "Back", "No other worker serves excel, pdf: these jobs wait until it is resumed.")


def test_worker_page_shows_its_jobs_and_drains_it(busy, look):
    busy.scheduler.configure({"keep_us": "3600000000"})
    busy.join("gpu", "video")
    busy.publish("first", "video")
    busy.end("gpu", *busy.inbox("gpu"), outcome="failed ValueError: no frame")
    busy.publish("second", "video")
    screen = look("#/workers")
    screen.row("Workers", "gpu@host").get_by_role("link").click()
    screen.row("Claimed jobs", "task-sec").get_by_text("video").wait_for()
    screen.row("Recent jobs", "task-fir").get_by_text("ValueError: no frame").wait_for()
    screen.page.get_by_role("button", name="Drain").click()
    confirm(screen, "Back", "No other worker serves video: these jobs wait until it is resumed.")
    screen.page.keyboard.press("8")
    screen.row("Failed jobs", "task-fir").get_by_role("link", name="gpu@host").wait_for()
    cells = screen.page.locator("table", has_text="last failure").locator("tbody td").all_inner_texts()
    assert cells[1:4] == ["video", "1", "1"]
    screen.page.goto(re.sub("#.*", "#/worker/nobody@host", screen.page.url))
    screen.sees("No live worker has this name.")


def test_failed_jobs_run_again_one_by_one_and_in_bulk(busy, look):
    busy.scheduler.configure({"keep_us": "3600000000"})
    busy.join("gpu", "video", slots=14)
    for number in range(14):
        busy.publish(f"fail-{number}-", "video")
    busy.end("gpu", *busy.inbox("gpu"), outcome="failed ValueError: no frame", inline=False)
    screen = look("#/job/task-fail-0-")
    screen.page.get_by_role("button", name="Run again").click()
    confirm(screen, "Run again", "Its caller already has the failure")
    screen.page.locator(".state.claimed, .state.running").wait_for()
    screen.page.goto(re.sub("#.*", "#/tasks", screen.page.url))
    screen.row("Failed jobs", "task-fai").first.get_by_role("button", name="Run again").click()
    confirm(screen, "Run again", "a new result replaces it")
    screen.page.get_by_role("button", name="Run again 12").click()
    confirm(screen, "Run again 12", "The jobs are published again with the same arguments.")
    screen.sees("12 of 12 failed jobs done")
    screen.row("Failed jobs", "task-fai").first.wait_for(state="hidden")
    assert busy.scheduler.client.zcard(busy.scheduler.keys.key("ended")) == 0


def test_button_keeps_the_focus_when_its_row_changes(busy, look):
    screen = look()
    row_of(screen, "Types", "pdf", "Pause").focus()
    busy.publish("more", "pdf")
    screen.row("Types", "pdf").locator("td").nth(1).get_by_text("2", exact=True).wait_for()
    assert screen.page.evaluate("document.activeElement.textContent") == "Pause"


def test_page_requests_a_token_once_and_continues(show, valkey, busy):
    token = "r" * 20
    screen = show(serve(valkey.url, CELERY_AFFINITY_WEB_TOKENS=f"read {token}") + "#/rules")
    dialog = screen.page.locator("#token")
    dialog.get_by_label("Token").fill("wrong")
    screen.page.keyboard.press("Enter")
    dialog.get_by_text("The server rejected the token.").wait_for()
    screen.page.keyboard.press("Escape")
    screen.page.get_by_role("alert").get_by_role("button", name="Enter a token").click()
    dialog.get_by_label("Token").fill(token)
    screen.page.keyboard.press("Enter")
    screen.page.locator("#name", has_text="typed").wait_for()
    screen.row("Settings", "affinity_age_weight").wait_for()
    assert not screen.page.get_by_role("button", name="Change").first.is_visible(), "the role is read"
    screen.page.get_by_text("up to date").wait_for()


#: Counts in ``window.rewritten`` the page's writes to live regions, with their texts.
COUNTS_LIVE_REGIONS = """
window.rewritten = [];
addEventListener("DOMContentLoaded", () => {
  const observer = new MutationObserver((records) => {
    window.rewritten.push(...records.map((each) => each.target.textContent));
  });
  for (const region of document.querySelectorAll("[role=status], [role=alert], [aria-live]"))
    observer.observe(region, { childList: true, characterData: true, subtree: true });
});
"""


@pytest.mark.parametrize("path", ["#/", "#/job/task-waits"])
def test_screen_reader_is_silent_without_new_data(busy, look, path):
    screen = look(path, scripts=[COUNTS_LIVE_REGIONS])
    screen.sees("up to date")
    screen.page.evaluate("window.rewritten = []")
    screen.after_news(3)
    assert screen.page.evaluate("window.rewritten") == []
    busy.join("another", "pdf")
    screen.sees("2 workers, up to date")
    assert screen.page.evaluate("window.rewritten") == ["2 workers, up to date"]


def test_screen_reader_announces_an_outage_once(show):
    with EmbeddedServer() as server:
        screen = show(serve(server.url), scripts=[COUNTS_LIVE_REGIONS])
        screen.sees("up to date")
        server.kill()
        screen.page.get_by_role("alert").get_by_text("The broker does not answer").wait_for()
        screen.sees("last data at")
        screen.page.evaluate("window.rewritten = []")
        screen.after_news(3, "down")
        assert screen.page.evaluate("window.rewritten") == []


def test_single_key_shortcuts_can_be_turned_off_permanently(busy, look):
    screen = look()
    screen.page.get_by_label("Single keys").uncheck()
    screen.page.reload()
    screen.row("Types", "pdf").wait_for()
    screen.page.locator("main").focus()
    for key in "2/34":
        screen.page.keyboard.press(key)
    assert screen.page.url.endswith("#/")
    assert screen.page.evaluate("document.activeElement.id") == "view"
    screen.page.get_by_label("Single keys").check()
    screen.page.locator("main").focus()
    screen.page.keyboard.press("2")
    screen.page.locator("caption", has_text="Claimed jobs").wait_for()


def test_second_search_starts_with_an_empty_field(busy, look):
    screen = look()
    for name in ("task-waits", "task-alone", "task-alone"):
        screen.page.keyboard.press("/")
        screen.page.keyboard.type(name)
        screen.page.keyboard.press("Enter")
        screen.page.locator("dd").get_by_text(name, exact=True).wait_for()
    screen.page.keyboard.press("/")
    screen.page.keyboard.type("task-wai")
    screen.page.locator("main").focus()
    screen.page.keyboard.press("/")
    screen.page.keyboard.type("task-runs")
    screen.page.keyboard.press("Enter")
    screen.page.locator("dd").get_by_text("task-runs", exact=True).wait_for()


def test_no_view_shows_a_null_value(busy, look):
    busy.publish("later", "pdf", delay_s=600)
    busy.publish("patient+", "pdf", rules="merge=m most=9 bytes=9999 wait=600000000/600000000")
    busy.bury("buried", "mail")
    screen = look()
    jobs = ("runs", "waits", "alone", "later", "patient+", "buried", "nobody")
    for path in ("", "workers", "next", "rules", "dead", "jobs", *(f"job/task-{each}" for each in jobs)):
        screen.page.goto(re.sub("#.*", f"#/{path}", screen.page.url))
        screen.page.locator("main section").first.wait_for()
        screen.after_news(1)
        for none in ("undefined", "NaN", "null", "[object", "Invalid Date"):
            assert none not in screen.page.locator("main").inner_text(), path
    screen.sees("never published here, or forgotten")


def test_scheduled_job_shows_its_due_time(busy, look):
    busy.publish("later", "pdf", delay_s=600)
    busy.publish("soon", "pdf", delay_s=0.001)
    wait_until(lambda: busy.scheduler.tick() and busy.state("soon") == "pending", 10, "the second job is due")
    screen = look("#/jobs")
    for name in ("later", "soon"):
        row = screen.row("Jobs", f"task-{name}")
        text = row.locator("[data-name=due]").inner_text()
        assert re.search(r"\d+:\d+", text)
        screen.page.goto(re.sub("#.*", f"#/job/task-{name}", screen.page.url))
        assert screen.page.locator("dt", has_text="due").locator("+ dd").inner_text() == text
        screen.page.goto(re.sub("#.*", "#/jobs", screen.page.url))
    assert screen.row("Jobs", "task-waits").locator("[data-name=due]").inner_text() == ""


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # Celery calls it
def test_arguments_result_and_traceback_are_shown_on_request(busy, look, load_app):
    message = json.dumps({"headers": {"argsrepr": "('a.pdf',)", "kwargsrepr": "{}"}})
    busy.publish("called", "pdf", message=message)
    load_app(APP).backend.store_result("task-called", ValueError("no page"), "RETRY", traceback="in <b>here</b>")
    screen = look("#/job/task-called")
    screen.sees("Why it waits")
    assert screen.page.get_by_text("a.pdf").count() == 0
    screen.page.get_by_role("button", name="Show arguments and result").click()
    for text in ("('a.pdf',)", "RETRY", "ValueError: no page", "in <b>here</b>"):
        screen.page.locator("dd").get_by_text(text, exact=True).wait_for()
    screen.page.get_by_role("button", name="Hide arguments and result").click()
    screen.page.get_by_text("a.pdf").wait_for(state="detached")


def test_jobs_are_counted_by_the_values_of_an_argument(busy, look):
    for number, customer in enumerate(("acme", "acme", "globex")):
        headers = {"argsrepr": "()", "kwargsrepr": f"{{'customer': '{customer}', 'page': {number}}}"}
        busy.publish(f"call{number}", "drawing", message=json.dumps({"headers": headers}))
    screen = look("#/jobs/type=drawing")
    screen.row("Jobs", "task-cal").first.wait_for()
    assert not screen.page.get_by_text("customer=acme").first.is_visible()
    screen.page.get_by_label("Arguments", exact=True).check()
    screen.page.get_by_role("cell", name="customer=acme, page=0").wait_for()
    counts = screen.page.locator("table", has=screen.page.locator("caption", has_text="By the value of an argument"))
    counts.get_by_role("button", name="acme").wait_for()
    assert counts.locator("tbody td").all_inner_texts() == ["acme", "2", "globex", "1"]
    counts.get_by_role("button", name="globex").click()
    screen.sees("that can be cancelled")
    assert screen.page.get_by_label("Argument", exact=True).input_value() == "customer=globex"
    screen.page.reload()
    screen.page.get_by_role("cell", name="customer=acme, page=0").wait_for()


def test_role_without_values_has_no_button_for_them(valkey, busy, show):
    screen = show(serve(valkey.url, CONF=json.dumps({"affinity_show_values_to": "nobody"})))
    screen.page.locator("body.blind").wait_for(state="attached")
    screen.page.goto(re.sub("#.*", "", screen.page.url) + "#/job/task-waits")
    screen.sees("Why it waits")
    assert not screen.page.get_by_role("button", name="Show arguments and result").is_visible()
    screen.page.evaluate("localStorage.setItem('celery_affinity arguments', 'shown')")
    screen.page.goto(re.sub("#.*", "", screen.page.url) + "#/jobs")
    screen.row("Jobs", "task-waits").wait_for()
    assert not screen.page.get_by_label("Arguments", exact=True).is_visible()


def test_ended_job_shows_its_wait_and_run_time(busy, look):
    (claim,) = busy.inbox("worker")
    busy.end("worker", claim, inline=False)
    key = busy.scheduler.keys.key("job", "runs")
    ended_us = int(busy.scheduler.client.hget(key, "ended"))
    busy.scheduler.client.hset(key, mapping={"enqueued": ended_us - 9_000_000, "claimed": ended_us - 2_000_000})
    screen = look("#/job/task-runs")
    waited = screen.page.locator("dt", has_text="waited").locator("+ dd")
    assert waited.inner_text() == "7.0 s"
    ran = screen.page.locator("dt", has_text="ran").locator("+ dd")
    assert ran.inner_text() == "2.0 s since its claim (the start time is unknown)"


#: Keeps uPlot's plots in ``window.plots``.
KEEPS_PLOTS = """
window.plots = [];
let made;
Object.defineProperty(window, "uPlot", {
  get: () => made && function (...given) { const plot = new made(...given); window.plots.push(plot); return plot; },
  set: (value) => { made = value; },
});
"""


def add_points(client, step_s, *ago):
    """Write a point of the history for each number of steps *ago*, the newest first. Type pdf has 5 s waits."""
    client.hset(Keys().key("history_names"), str(checksum_of("pdf")), "pdf")
    now = int(client.time()[0]) // step_s
    for steps in ago:
        row = TypePoint(ended=20, failed=steps % 2, waiting=steps, p50_s=1.0, p95_s=5.0)
        point = Point(now - steps, 4, 3, 50_000_000, 1.0, 5.0, {checksum_of("pdf"): row})
        client.rpush(Keys().key("history", str(step_s)), point.packed())


def test_charts_show_the_history_from_before_the_first_viewer(show, url, busy):
    client = busy.scheduler.client
    add_points(client, 10, *range(30), *range(33, 80))
    add_points(client, 300, *range(200))
    screen = show(url, scripts=[KEEPS_PLOTS])
    screen.page.get_by_role("img", name="Jobs ended per second: pdf 2/s").wait_for()
    screen.page.get_by_role("img", name="Busy slots: all workers 75 %").wait_for()
    screen.page.get_by_role("img", name="Memory of Redis: all workers 50 MB").wait_for()
    assert screen.page.locator("canvas").count() == 7
    times, values = screen.page.evaluate("window.plots[0].data")
    drawn = "".join("-" if value is None else "#" for value in values)
    assert re.fullmatch("-*#+---#+-*", drawn), "no line leads over the three missing points"
    assert times == sorted(times)
    screen.page.get_by_label("1 day").check()
    screen.page.get_by_role("img", name="Jobs ended per second: pdf 0.07/s").wait_for()
    screen.page.reload()
    screen.page.get_by_role("img", name="Jobs ended per second: pdf 0.07/s").wait_for()
    assert screen.page.get_by_label("1 day").is_checked(), "the choice is kept"


def test_empty_charts_show_the_command_of_a_missing_worker(show, url, redis_client):
    ScriptedFleet(Scheduler(redis_client, Keys())).publish("alone", "drawing")
    screen = show(url)
    screen.page.get_by_text("No worker is running: celery -A typed worker -Q drawing").first.wait_for()
    screen.page.locator(".headline", has_text="No worker is running.").wait_for()


# -- the wall


def test_wall_fits_one_screen_with_large_text(show, url, busy):
    for number in range(12):
        busy.publish(f"more{number}", f"type-{number}")
    screen = show(url + "/wall", width=1920, height=1080)
    screen.page.locator("#headline.bad").get_by_text("No worker serves").wait_for()
    screen.page.locator("tr", has_text="drawing").get_by_text("no worker").wait_for()
    small = screen.page.evaluate("""
        [...document.querySelectorAll("body *")].filter((each) => each.textContent && each.checkVisibility()
            && parseFloat(getComputedStyle(each).fontSize) < innerHeight / 30).map((each) => each.outerHTML)""")
    assert small == []
    size = "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
    assert screen.page.evaluate(size) == [1920, 1080]
    hidden = screen.page.evaluate("""
        [...document.querySelectorAll("#types tr")].filter((each) => each.getBoundingClientRect().bottom > 1080)""")
    assert hidden == []
    assert screen.page.locator("a, button, input").count() == 0


def test_wall_shows_the_types_and_cohorts_in_turn(valkey, show, redis_client):
    cohorts = {"ml": {"types": ["gpu*"]}}
    check_schema(redis_client, Keys(), shown_cohorts(map_text(cohort_map(cohorts))))
    for cohort, type_ in (("default", "pdf"), ("ml", "gpu")):
        ScriptedFleet(Scheduler(redis_client, Keys(cohort=cohort))).join("both", type_)
    screen = show(serve(valkey.url, CONF=json.dumps({"affinity_cohorts": cohorts})) + "/wall", scripts=[FAST_TURNS])
    for name, types in (("whole fleet", "gpu pdf"), ("cohort default", "pdf"), ("cohort ml", "gpu")):
        screen.page.locator("#part", has_text=name).wait_for()
        screen.page.wait_for_function(
            """
            ([name, types]) => document.getElementById("part").textContent === name
                && [...document.querySelectorAll("td:first-child")].map((td) => td.textContent).join(" ") === types
        """,
            arg=[name, types],
        )


def test_wall_takes_a_token_from_its_address(show, valkey, busy):
    token = "r" * 20
    address = serve(valkey.url, CELERY_AFFINITY_WEB_TOKENS=f"read {token}") + "/wall"
    screen = show(address)
    screen.sees("This server requires a token: open /wall#token=TOKEN")
    screen = show(f"{address}#token={token}")
    screen.page.locator("#headline", has_text="No worker serves drawing.").wait_for()
    assert screen.page.url == address, "the token is not in the address"


#: Shortens the pauses of timers of 15 s.
FAST_TURNS = """
const later = window.setInterval;
window.setInterval = (what, ms) => later(what, ms === 15000 ? 1500 : ms === 1000 ? 200 : ms);
"""
