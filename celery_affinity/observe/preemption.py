"""Jobs that are, or were, stopped while they ran for tenants below their minimum: what `explain` says of both sides."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..clock import SECOND_US
from ..rules.encoding import decode
from ..rules.protocol import MOST_GIVING_LOOKED_AT, TENANT_PREFIX
from ..rules.rows import number_of, text_of
from ..rules.tenants import min_of
from ..server.reader import Reader
from . import sentences
from .job_row import JobRow, read_jobs
from .keyed.facts import limits_in_force, stated_in

#: Fields of the row of a job that was stopped, in the order of `Stopped`.
_FIELDS = ("preempted", "preempted_on", "preempted_ran", "preempted_for", "preemptions")

#: Largest number of stops that are shown of one tenant.
_MOST_SHOWN = 5


@dataclass(frozen=True)
class Stopped:
    """The last time that a job was stopped: when (Unix time), on which worker, after how many seconds, for whom.

    *minimum*: that of the tenant by now. *times*: how often the job was stopped in all, of *most*.
    """

    at_s: float
    worker: str
    ran_s: float
    tenant: str
    minimum: int
    times: int
    most: int


@dataclass(frozen=True)
class Stop:
    """A job that is being stopped: the id of its *task*, its *worker*, and the *tenant* that is to get its slot.

    *left_s*: seconds of the *grace_s* that are left until the task is ended by force; 0 once they are over.
    """

    task: str
    worker: str
    tenant: str
    minimum: int
    left_s: float
    grace_s: float


def stopped_last(reader: Reader, job_id: str, most: int) -> Stopped | None:
    """Return the last time that a job was stopped; None if it never was. *most*: the setting."""
    row = reader.ask_one("hmget", reader.key("job", job_id), list(_FIELDS))
    at_us, worker, ran_us, tenant, times = (text_of(value or b"") for value in row)
    if not number_of(times):
        return None
    return Stopped(
        number_of(at_us) / SECOND_US,
        decode(worker),
        number_of(ran_us) / SECOND_US,
        decode(tenant),
        _minimum(reader, TENANT_PREFIX + tenant),
        number_of(times),
        most,
    )


def stops(reader: Reader, run: JobRow, now_us: int) -> list[Stop]:
    """Return the order to stop a claimed job, if there is one; of a pending one, the stops for its tenant and type."""
    orders = {job_id: words.split(" ") for job_id, words in reader.hash("vacating").items()}
    orders = {job_id: words for job_id, words in orders.items() if len(words) == 6}
    keys = stated_in(run.rules)
    if run.state == "claimed":
        found = [run.job_id] if orders.get(run.job_id, [""])[0] == run.fence else []
    else:
        wanted = [keys[-1].key, run.lane.type] if keys and keys[-1].is_of_tenant else []
        found = [job_id for job_id, words in orders.items() if words[2:4] == wanted][:_MOST_SHOWN]
    return _described(reader, found, [orders[job_id] for job_id in found], now_us) if found else []


def why_none(reader: Reader) -> str:
    """Return why no job is stopped for a tenant below its minimum that has waited for long enough."""
    keys = [text_of(key) for key in reader.ask_one("zrevrange", reader.key("giving"), 0, MOST_GIVING_LOOKED_AT - 1)]
    held = reader.ask([("zcard", reader.key("held", key)) for key in keys])
    minima = limits_in_force(reader).of_tenants
    above = [key for key, number in zip(keys, held, strict=True) if int(number) > min_of(key, minima)]
    return sentences.stops_nothing([_tenant(key) for key in keys], [_tenant(key) for key in above])


def _tenant(key: str) -> str:
    return decode(key.removeprefix(TENANT_PREFIX))


def _described(reader: Reader, ids: Sequence[str], orders: Sequence[Sequence[str]], now_us: int) -> list[Stop]:
    tasks = [row.task_id for row in read_jobs(reader, ids, ("task",))]
    names = reader.ask([("hget", reader.key("worker", words[1]), "name") for words in orders])
    return [
        Stop(
            task or job_id,
            decode(text_of(name)) if name else words[1],
            _tenant(words[2]),
            _minimum(reader, words[2]),
            max(0.0, (number_of(words[4]) + number_of(words[5]) * 1000 - now_us) / SECOND_US),
            number_of(words[5]) / 1000,
        )
        for job_id, task, name, words in zip(ids, tasks, names, orders, strict=True)
    ]


def _minimum(reader: Reader, key: str) -> int:
    return min_of(key, limits_in_force(reader).of_tenants)
