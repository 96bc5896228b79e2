"""Locality on real workers: jobs run where their hint is held, and a killed worker holds no hint."""

import json

from celery_affinity.schema.keys import Keys

from ..support.processes import wait_until

CONF = json.dumps({"affinity_locality_bonus": 100_000, "affinity_lookahead": 0})


def test_jobs_run_on_the_worker_that_holds_their_hint(fleet):
    pdf, pids = fleet.tasks["pdf"], {}
    workers = {}
    for hint in ("m", "n"):  # sequential, so that each worker is the only one when its first job arrives
        workers[hint] = fleet.start(hint, "pdf", pool="solo", CONF=CONF)
        for other in pids:
            pdf.delay(f"busy {other}".replace(" ", "-"), 3)
        if pids:
            wait_until(
                lambda: any(job.startswith("busy") for job in fleet.ledger.starts()), 30, "the other one is busy"
            )
        pdf.apply_async((f"warm-{hint}",), locality=hint).get(timeout=30)
        (pids[hint],) = fleet.ran_on(f"warm-{hint}")
    assert len({*pids.values()}) == 2
    wait_until(fleet.all_slots_are_free, 30, "both are idle")
    busy = [pdf.delay(f"both-{number}", 1) for number in range(2)]
    wait_until(lambda: {"both-0", "both-1"} <= {*fleet.ledger.starts()}, 30, "both are busy")
    waiting = [pdf.apply_async((f"{hint}-{number}", 0.1), locality=hint) for number in range(4) for hint in ("n", "m")]
    for result in (*busy, *waiting):
        result.get(timeout=30)
    hits = sum(fleet.ran_on(f"{hint}-{number}") == [pids[hint]] for number in range(4) for hint in ("m", "n"))
    assert hits >= 6, f"{hits} of 8: at the end a free slot takes what is left"

    wait_until(fleet.all_slots_are_free, 30, "all is done")
    workers["m"].kill()
    wait_until(lambda: fleet.names() == {"n"}, 30, "the killed one is gone")
    held = {key: fleet.redis.zrange(key, 0, -1) for key in fleet.redis.scan_iter(Keys().key("holders", "*"))}
    alive = [worker.id.encode() for worker in fleet.report.status().workers]
    assert all(holders == alive for holders in held.values())
    assert len([*fleet.redis.scan_iter(Keys().key("hints", "*"))]) <= 1
