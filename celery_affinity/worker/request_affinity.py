"""What a task sees of its job's claim: ``self.request.affinity``, in every pool.

Each request gets the properties of its message, with the delivery tag of the claim, in whatever process or thread the
task runs; so nothing is added to a request, and a task that does not ask pays nothing. A request of a task that was
called directly, or that another transport brought, has an answer too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from celery.app.task import Context

from ..client.first_try import rules_in
from ..client.stamp import PROPERTY
from ..membership.held import fence_in
from ..rules.keyed.key_rules import key_in, tenant_in
from ..rules.merging import Call
from ..transport.consumed import PREEMPTIONS
from .merged_run import calls_of


@dataclass(frozen=True)
class RequestAffinity:
    """The claim of the job that a task runs.

    *fence*: its fencing number. Each claim of the fleet has a higher number than all before it, so storage can refuse a
    write with a lower number than the highest it has seen: a worker sends it that was taken for dead. None if the task
    was not claimed: it was called directly, or came by another transport or from a queue that is not scheduled. *key*:
    the exclusive key of the job; if it has none, the key of its rate, after ``rate:``; None without any. *tenant*: the
    one on whose behalf the job runs. *calls*: the calls that were merged into this run; empty for a single call, unless
    the task merges with ``keep="all"``. *preemptions*: number of times that the task was stopped before, for a task of
    another tenant (`preempted`).
    """

    fence: int | None = None
    key: str | None = None
    tenant: str | None = None
    calls: tuple[Call, ...] = ()
    preemptions: int = 0

    @property
    def merged(self) -> int:
        """The number of calls that the run is made of."""
        return max(1, len(self.calls))


def affinity_in(properties: object) -> RequestAffinity:
    """Return what the *properties* of a message, as its request has them, say of the claim."""
    if not isinstance(properties, Mapping):
        return RequestAffinity()
    fence = fence_in(properties.get("delivery_tag"))
    if fence is None:
        return RequestAffinity()
    rules = rules_in(properties.get(PROPERTY))
    return RequestAffinity(fence, key_in(rules), tenant_in(rules), preemptions=properties.get(PREEMPTIONS, 0))


def affinity_of_request(context: Context) -> RequestAffinity:
    """Return what a task sees of its claim."""
    return replace(affinity_in(context.properties), calls=calls_of(context))
