"""Invariants of preemption and of hints, which hold after every server function."""

from celery_affinity.schema.rules_codec import decode_rules
from celery_affinity.settings.tenants import minimum_of
from tests.conformance.reference import keys

from .invariants import idle_types
from .mirror import KEYS


def check_that_stops_are_just(reference, ordered):
    """Check that each order whose job is not in *ordered* takes a slot from a tenant above its minimum.

    The slot is for a tenant below its minimum. Return the current orders.
    """
    orders = {(job_id, stop.fence): stop for job_id, stop in reference.stop_orders.items()}
    for (job_id, _), stop in orders.items() - ordered.items():
        job = reference.jobs[job_id]
        assert decode_rules(job.rules).is_preemptible, f"{job_id} may not be stopped"
        assert not job.acked, f"{job_id} was acked, and would be lost"
        assert job.preemptions < int(reference.settings.get("preemption_max")), f"{job_id} is stopped too often"
        its_key = keys.keys_of(job)[-1].key
        left = [each for each in keys.holders(reference, its_key) if each.id not in reference.stop_orders]
        assert its_key != stop.key, f"{job_id} is stopped for its own tenant"
        assert len(left) >= _minimum(reference, its_key), f"the stop of {job_id} brings {its_key} below its minimum"
        assert len(keys.holders(reference, stop.key)) < _minimum(reference, stop.key), f"{stop.key} needs no slot"
        assert stop.type not in idle_types(reference), f"{job_id} is stopped beside a free slot"
    return orders


def _minimum(reference, its_key):
    return minimum_of(its_key, reference.settings.values.get("tenants", ""))


def check_that_hints_are_those_of_workers(reference, state):
    """Check that only workers of the fleet hold hints, and that both indexes agree."""
    hints, holders = _pairs(state, KEYS.key("hints", "")), _pairs(state, KEYS.key("holders", ""))
    assert hints == {(worker, hint) for hint, worker in holders}, "a hint that only one side knows"
    assert {worker for worker, _ in hints} <= {*reference.workers}, "a worker that is gone holds hints"


def _pairs(state, prefix):
    return {(name.removeprefix(prefix), each) for name in state if name.startswith(prefix) for each in state[name]}
