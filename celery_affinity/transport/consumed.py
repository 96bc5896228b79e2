"""A message as its consumer gets it: the body of a claimed job, or an entry of a list, completed for kombu."""

from datetime import datetime
from typing import Any

from celery.utils.time import maybe_iso8601

from ..client import envelope, first_try
from ..client.stamp import PROPERTY, Message, as_counted
from ..rules.protocol import MAX_PRIORITY
from ..rules.redis_keys import COHORT
from ..rules.settings import Settings
from ..rules.untrusted import LONGEST_SHORT, clamped, whole
from ..server.replies import Claim

#: Name of a message property that has what a worker says of a job's wait; no message has it outside of a worker.
WAIT = "celery_affinity_wait"

#: Name of the property that says how often a job was stopped for another tenant's, if it was.
PREEMPTIONS = "celery_affinity_preemptions"


def message_of_claim(claim: Claim, tag: str, settings: Settings) -> Message:
    """Return the message of a claimed job, with *tag* as its delivery tag. *settings*: those of the app that reads it.

    The message has no ETA any more: the time has come, and a worker whose clock is behind would wait again with the
    slot held. The caller's ETA stays in our property. Raises any error of the decoding for a text that is no message.
    """
    message = envelope.read(claim.message)
    headers = message["headers"] = message.get("headers") or {}  # producers in other languages leave out what they can
    properties = message["properties"]
    properties["delivery_tag"] = tag
    priority = properties.get("priority")
    if priority is not None and whole(priority, 0, MAX_PRIORITY) is None:
        properties["priority"] = clamped(priority, 0, MAX_PRIORITY, 0)  # as it counted when it was published
    information = properties["delivery_info"] = properties.get("delivery_info") or {}
    # Stock Celery's own mark stays: a message that kombu restored came from a list.
    information["redelivered"] = claim.has_run or information.get("redelivered") is True
    if claim.preemptions:
        properties[PREEMPTIONS] = claim.preemptions
    if not information.get("exchange"):
        information.update(exchange="", routing_key=claim.type)
    if headers.get("eta") and _is_moment(headers["eta"]):  # any other is Celery's to refuse
        ours = properties.get(PROPERTY)
        properties[PROPERTY] = {**(ours if isinstance(ours, dict) else {}), "eta": headers["eta"]}
        headers["eta"] = None
    if settings.cohorts:
        properties[COHORT] = settings.cohort_of(claim.type)
    if settings.traces:
        properties[WAIT] = {"type": claim.type, "enqueued_us": claim.enqueued_us, "deliveries": claim.deliveries}
    if claim.urgency is not None:
        _move(properties, claim.type, *claim.urgency, settings)
    return message


def _move(properties: dict[str, Any], type_: str, on_demand: bool, priority: int, settings: Settings) -> None:
    """Have a message say the type, mode and priority to which somebody moved its job: those are its retry's as well."""
    properties["delivery_info"].update(exchange="", routing_key=type_)
    properties["priority"] = as_counted(priority, settings)  # this is its own inverse
    properties[PROPERTY] = first_try.moved(properties.get(PROPERTY), on_demand)


def message_of_list(message: object, queue: str) -> object:
    """Return a message from the list of *queue* with its destination, which kombu needs to restore an unacked one."""
    properties = message.get("properties") if isinstance(message, dict) else None
    if isinstance(properties, dict) and not properties.get("delivery_info"):
        properties["delivery_info"] = {"exchange": "", "routing_key": queue}
    return message


def _is_moment(eta: object) -> bool:
    if isinstance(eta, datetime):
        return True
    try:
        return isinstance(eta, str) and len(eta) <= LONGEST_SHORT and maybe_iso8601(eta) is not None
    except (ValueError, TypeError, AttributeError):  # what Celery's Request catches
        return False
