"""A worker's heartbeat reports its changes in a fixed order."""

from types import SimpleNamespace
from unittest.mock import Mock

from celery_affinity.leases.capacity import Capacity
from celery_affinity.leases.member import Member
from celery_affinity.scheduler.messages import Claim

from ..support.members import Host, Pool, claims_of, reporting_of


def membership_with(claims, sync):
    """Return a worker that serves "mail" and "pdf", and the list of its joins and requeues."""
    members, calls = Member.__new__(Member), []
    members.claims, members.capacity = claims, Capacity(Pool(2), claims)
    members.capacity.types = ("mail", "pdf")
    members.withdrawn, members._rejoin = frozenset(), False
    members._loop, members._host, members._heartbeats = Mock(), Host(), Mock()
    members.reporter = reporting_of(claims, heartbeats=members._heartbeats)
    members._loop.stands_still = members._loop.report.return_value = False
    members._settings = SimpleNamespace(heartbeat_interval=5)
    members._dispatcher, members._recorder = Mock(), Mock()

    def join(scheduler, name, app, *, withdrawn):
        calls.append(("join without", sorted(withdrawn)))
        return SimpleNamespace(void_up_to=0)

    members.id = members.name = members._app = "any"
    members._reconciler = SimpleNamespace(
        join=join, sync=sync, requeue=lambda scheduler, numbers: calls.append(("given back", numbers))
    )
    return members, calls


def test_claim_given_up_during_a_heartbeat_is_requeued_after_withdrawal():
    claims = claims_of()
    tag = claims.hold(Claim("job", "7", "mail", 0, 0, b""))

    def sync(scheduler):
        if not claims.given_up() and claims.find(tag):  # the event loop's thread does this during the sync
            members.lend({}, frozenset({"mail"}))
            members.reporter.give_back([tag])
        return SimpleNamespace(is_registered=True, ticker=False)

    members, calls = membership_with(claims, sync)
    members._heartbeat()
    assert calls == [("given back", [])], "the server would place the job here again"
    assert members._heartbeats.wake.called
    members._heartbeat()
    assert calls[1:] == [("join without", ["mail"]), ("given back", [("job", "7")])]


def test_stopping_worker_reports_draining_before_it_requeues_jobs():
    claims = claims_of()
    claims.hold(Claim("job", "7", "mail", 0, 0, b""))

    def sync(scheduler):
        calls.append("draining" if claims.is_closed else "serving")
        return SimpleNamespace(is_registered=True, ticker=False)

    members, calls = membership_with(claims, sync)
    members._pool = Pool(2)
    members._rejoin = True
    members.drain()
    assert calls == ["draining", ("given back", [("job", "7")])], "or the server would place the job here again"
    members._heartbeat()
    assert calls[2:] == ["draining", ("given back", [])], "and a join would have it place others"
