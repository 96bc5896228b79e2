"""Members of one worker in several cohorts, and the member of a worker without cohorts; no server, no pool."""

from collections import Counter
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from celery import Celery

from celery_affinity.leases.held_claim import delivery_tag
from celery_affinity.scheduler.messages import Claim
from celery_affinity.schema.keys import Keys
from celery_affinity.worker.cohort_member import CohortMembers

from ..support.members import Pool, reporting_of

CONF = {"broker_transport": "celery_affinity:Transport"}
IN_COHORTS = {**CONF, "affinity_cohorts": {"eu": {"types": ["eu.*"], "url": "redis://eu"}}}


def a_feed(cohort):
    """Return the job feed of a member that has joined *cohort*. It records its calls."""
    reporter = reporting_of()
    member = Mock(reporter=reporter, claims=reporter.claims, returned=1)
    feed = Mock(member=member, reporter=reporter, worker=f"worker of {cohort}", key=f"inbox of {cohort}")
    feed.room.return_value = 2
    return feed


def members_in(*cohorts, conf=IN_COHORTS):
    """Return the members of a worker, and their job feeds by cohort. The member in "down" has not joined."""
    app = Celery(set_as_current=False, changes=conf)
    members = CohortMembers(SimpleNamespace(app=app), Pool(4), None)
    feeds = {cohort: a_feed(cohort) for cohort in cohorts if cohort != "down"}
    members._by_cohort = {
        cohort: Mock(job_feed=feeds.get(cohort), member=feeds[cohort].member if cohort in feeds else None)
        for cohort in cohorts
    }
    return members, feeds


def a_claim(job_id):
    return Claim(job_id, "7", "pdf", 0, 0, b"")


def test_worker_without_cohorts_uses_its_only_feed_as_inbox():
    members, feeds = members_in("default", conf=CONF)
    channel = SimpleNamespace(keys=Keys())
    members.start(channel, {"default": ["pdf"]})
    members.read_with(channel, feeds["default"])
    assert channel.inbox is feeds["default"], "a message is not searched for in several members"


def test_worker_in_cohorts_reads_default_inbox_from_broker_channel():
    members, feeds = members_in("default", "eu")
    channel = SimpleNamespace(keys=Keys())
    members.start(channel, {"default": ["pdf"], "eu": ["eu.pdf"]})
    members.read_with(channel, feeds["default"])
    assert channel.inbox is members
    assert (members.worker, members.key) == ("worker of default", "inbox of default")
    members.receive(claim := a_claim("job"))
    members.obey(["tick"])
    feeds["default"].receive.assert_called_once_with(claim)
    feeds["default"].obey.assert_called_once_with(["tick"])
    assert not feeds["eu"].receive.called


def test_worker_outside_the_default_cohort_waits_on_unused_list():
    members, _ = members_in("eu")
    channel = SimpleNamespace(keys=Keys())
    members.start(channel, {"eu": ["eu.pdf"]})
    assert members.key == Keys().key("inbox", members.worker)
    with pytest.raises(AssertionError):
        members.receive(a_claim("job"))


def test_claim_is_reported_by_the_member_that_holds_it():
    members, feeds = members_in("default", "eu", "down")
    feeds["eu"].reporter.claims.hold(a_claim("job"))
    assert members.reporting_of(delivery_tag("job", "7")) is feeds["eu"].reporter
    assert members.reporting_of(delivery_tag("another", "7")) is feeds["default"].reporter
    assert not members.drained
    feeds["eu"].reporter.claims.drained = True
    assert members.drained


def test_slot_is_lent_in_the_waiting_jobs_cohort():
    members, feeds = members_in("default", "eu", "down")
    members.lend(Counter({"pdf": 2, "eu.pdf": 1}), {"pdf"})
    feeds["default"].member.lend.assert_called_once_with({"pdf": 2}, {"pdf"})
    feeds["eu"].member.lend.assert_called_once_with({"eu.pdf": 1}, {"pdf"})
    assert members.room() == 4


def test_consumer_is_served_by_its_queues_cohort_member(caplog):
    members, feeds = members_in("default", "down")
    members.serve("pdf", True)
    feeds["default"].serve.assert_called_once_with("pdf", True)
    members.serve("eu.pdf", True)
    assert "this worker was started without types of cohort 'eu'" in caplog.text


def test_worker_has_left_once_all_member_servers_know():
    members, _ = members_in("default", "eu")
    for cohort_member, has_left in zip(members._by_cohort.values(), (True, False), strict=True):
        cohort_member.leave.return_value = has_left
    assert not members.leave()
    members._by_cohort["eu"].leave.return_value = True
    assert members.leave()
    assert not members_in("down")[0].leave(), "it was no member"
