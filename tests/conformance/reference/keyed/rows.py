"""What is known of a key: the rules of its jobs, who waits for it, and who holds it."""

from celery_affinity.rules.job_rules import JobRules, parse

from ..model import Cohort, Job


def rules_of(job: Job) -> JobRules | None:
    """Return what the rules of *job* say; None if the job has none."""
    return parse(job.rules)


def waiting(cohort: Cohort, key: str) -> list[Job]:
    pending = (job for job in cohort.jobs.values() if job.state == "pending")
    return [job for job in pending if (rules := rules_of(job)) and rules.key == key]


def holders(cohort: Cohort, key: str) -> list[Job]:
    """Return the jobs that hold *key*; those of a rate hold nothing."""
    claimed = (cohort.jobs[job_id] for worker in cohort.workers.values() for job_id in worker.claims)
    return [job for job in claimed if (rules := rules_of(job)) and rules.key == key and isinstance(rules.stated, int)]
