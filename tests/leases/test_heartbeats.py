"""What one heartbeat of a worker tells, and in which order."""

from types import SimpleNamespace
from unittest.mock import Mock

from celery_affinity.leases.capacity import Capacity
from celery_affinity.leases.member import Member
from celery_affinity.scheduler.messages import Claim

from ..support.members import Host, Pool, claims_of, reporting_of


def membership_with(claims, sync):
    """Return a worker that serves "mail" and "pdf", and the calls of its heartbeats: joins, and jobs given back."""
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


def test_a_claim_that_is_given_up_during_a_heartbeat_goes_back_only_once_its_type_is_avoided():
    claims = claims_of()
    tag = claims.hold(Claim("job", "7", "mail", 0, 0, b""))

    def sync(scheduler):
        if not claims.given_up() and claims.find(tag):  # the event loop's thread does this meanwhile
            members.lend({}, frozenset({"mail"}))
            members.reporter.give_back([tag])
        return SimpleNamespace(known=True, ticker=False)

    members, calls = membership_with(claims, sync)
    members._heartbeat()
    assert calls == [("given back", [])], "the server would place the job here again"
    assert members._heartbeats.wake.called
    members._heartbeat()
    assert calls[1:] == [("join without", ["mail"]), ("given back", [("job", "7")])]


def test_a_worker_that_stops_says_so_before_it_gives_anything_back():
    claims = claims_of()
    claims.hold(Claim("job", "7", "mail", 0, 0, b""))

    def sync(scheduler):
        calls.append("draining" if claims.is_closed else "serving")
        return SimpleNamespace(known=True, ticker=False)

    members, calls = membership_with(claims, sync)
    members._pool = Pool(2)
    members._rejoin = True
    members.drain()
    assert calls == ["draining", ("given back", [("job", "7")])], "else the server would place the job here again"
    members._heartbeat()
    assert calls[2:] == ["draining", ("given back", [])], "and a join would have it place others"
