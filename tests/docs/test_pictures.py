"""The pictures: what they compute, what they show of real output, and that all can read them."""

import re
from xml.etree import ElementTree

import pytest

from celery_affinity.clock import SECOND_US
from celery_affinity.lab.scripts_engine import FakeClockScheduler
from celery_affinity.reports.fleet_status import status_text
from celery_affinity.reports.queue_order import NEXT_JOBS, next_jobs
from celery_affinity.reports.status import Report
from celery_affinity.schema.job_record import NewJob
from celery_affinity.schema.keys import Keys
from docs.pages.all_of_them import DOCS, PICTURES
from docs.pages.pictures import specialist
from docs.pages.pictures.terminal import SHOWN

from ..conformance.reference.placement import choose_worker
from ..support.clocked import ClockedReader
from ..support.scripted_fleet import ScriptedFleet

SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_of_top_shows_what_top_prints(valkey, redis_client):
    """To draw it anew, write what this test finds into the file that it names."""
    fleet = ScriptedFleet(FakeClockScheduler(redis_client, Keys()))
    fleet.join("pdf-1", "pdf", slots=4)
    fleet.join("any-1", "pdf", "excel", slots=2)

    def publish(task_id, type_, task, **fields):
        fleet.scheduler.publish(NewJob(task_id, type_, "message", task_id=task_id, task_name=task, **fields))

    for number in range(9):
        publish(f"invoice-{number}", "pdf", "shop.render")
    fleet.scheduler.advance(31)
    publish("prices-7", "excel", "shop.read", priority=3)
    publish("report-july", "pdf", "shop.render", priority=8, delay_us=60 * SECOND_US)
    fleet.scheduler.advance(9)
    publish("offer-for-ann", "pdf", "shop.render", on_demand=True)
    for worker in ("pdf-1", "any-1"):
        fleet.sync(worker, slots=4 if worker == "pdf-1" else 2)
    fleet.scheduler.advance(2)
    reader = ClockedReader(fleet.scheduler)
    found = f"{status_text(Report(reader).status())}\n\n{NEXT_JOBS.text(next_jobs(reader, None, 6))}\n"
    assert found == SHOWN.read_text(), f"{SHOWN} is to hold:\n{found}"


def test_a_versatile_worker_is_free_for_what_only_it_can_do():
    assert specialist.waits("excel", specialist.longest_waiting) == [5, 0.5, 5]
    assert specialist.waits("excel", choose_worker) == [0, 0, 0]
    for each in (specialist.longest_waiting, choose_worker):
        assert specialist.waits("pdf", each) == [0, 0, 0]
        assert len(specialist.runs(each)) == len(specialist.JOBS)


@pytest.mark.parametrize("path", sorted(PICTURES), ids=lambda path: path.name)
def test_a_picture_can_be_read_by_all(path):
    picture = ElementTree.parse(path).getroot()
    assert picture.findtext(f"{SVG}title")
    assert len(picture.findtext(f"{SVG}desc")) > 80, "for who does not see it"
    style = picture.findtext(f"{SVG}style")
    assert "prefers-color-scheme:dark" in style
    _, _, width, _ = map(float, picture.get("viewBox").split())
    sizes = [float(size) for size in re.findall(r"([\d.]+)px", style)]
    assert min(sizes) * 720 / width >= 12, "at a width of 720 px"
    pages = [page.read_text() for page in DOCS.rglob("*.md")]
    (alternative, *_) = (words for page in pages for words in re.findall(rf"!\[([^\]]+)\]\([^)]*{path.name}\)", page))
    assert alternative
