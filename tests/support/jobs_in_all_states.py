"""Random jobs in all states, drawn by hypothesis."""

from hypothesis import strategies as draw

from celery_affinity.clock import SECOND_US
from celery_affinity.schema.job_record import with_suffix

TYPES = ("pdf", "excel", "nobody's")

#: Outcomes of a claimed job; None if it is still held.
OUTCOMES = (None, "acked", "failed ValueError: no such page", "rejected Reject: bad")

some_jobs = draw.lists(
    draw.fixed_dictionaries(
        {
            "type_": draw.sampled_from(TYPES),
            "priority": draw.integers(0, 10),
            "on_demand": draw.booleans(),
            "delay_s": draw.sampled_from([0, 0, 0, 60]),
            "expires_s": draw.sampled_from([None, None, None, 0, 600]),
            "key": draw.sampled_from([None, None, "a", "b"]),
            "merges": draw.sampled_from([False, False, True]),
            "outcome": draw.sampled_from(OUTCOMES),
            "is_revoked": draw.sampled_from([False, False, False, True]),
        }
    ),
    max_size=25,
)


def fill(fleet, drawn):
    """Publish the drawn jobs at the same time, claim some of them, and end some claims. Return all job ids."""
    outcomes = {}
    for worker, types in (("one", ("pdf",)), ("two", ("pdf", "excel")), ("three", ("excel",))):
        fleet.join(worker, *types, slots=2, settings={"keep": 3600.0})
    published = []
    for number, each in enumerate(drawn):
        rules = [
            *(["merge=m most=9 bytes=9999"] if each["merges"] else []),
            *([f"key={each['key']} limit=1"] * bool(each["key"])),
        ]
        name = with_suffix(f"job{number}", " ".join(rules))
        options = {option: each[option] for option in ("priority", "on_demand")}
        options["delay_us"] = each["delay_s"] * SECOND_US
        options["expires_us"] = each["expires_s"] and each["expires_s"] * SECOND_US
        published += fleet.made([name], each["type_"], task_name="tests.task", rules=" ".join(rules), **options)
        outcomes[f"message of {name}".encode()] = each["outcome"]
    fleet.scheduler.publish(*published)
    for worker in ("one", "two", "three"):
        for claim in fleet.inbox(worker):
            if outcomes[claim.message]:
                fleet.end(worker, claim, outcome=outcomes[claim.message], inline=False)
    revoked = [job.task_id for job, each in zip(published, drawn, strict=True) if each["is_revoked"]]
    fleet.scheduler.revoke(revoked, [], keep_s=60)
    return [job.id for job in published]


def tell(fleet, *, batches_alone):
    """Ack all unreported ends, or only the ends of batches."""
    kept = []
    while ending := fleet.scheduler.next_report("app", again_s=60, telling=kept):
        calls = fleet.scheduler.batch_calls(ending.job_id)
        if calls is not None:
            outcome = "failed" if ending.how == "failed" else "acked"
            fleet.scheduler.ack_batch_reports(ending.job_id, [each.job_id for each in calls.callers], outcome=outcome)
        elif batches_alone:
            kept.append(ending.job_id)
        else:
            fleet.scheduler.ack_report([ending.job_id])


def runs_of(fleet, ids):
    """Map each job id to the id of its batch, or to itself if the job is not merged."""
    batches = {each: fleet.scheduler.client.hget(fleet.scheduler.keys.key("job", each), "into") for each in ids}
    return {each: batch.decode() if batch else each for each, batch in batches.items()}
