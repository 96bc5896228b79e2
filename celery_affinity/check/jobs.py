"""Findings about the jobs: types without workers, bounds, messages of stock producers, dispatchers and settings."""

from ..options.key_templates import pattern_of
from ..options.type_names import did_you_mean, misspelt_type, similar_types
from ..reports.sentences import pause_sentence
from ..reports.stock_messages import StockQueue
from ..schema.bounds import DROP_NEWEST, DROP_OLDEST, REFUSE
from ..schema.keys import OF_TYPE
from ..schema.values import matches, patterns_overlap
from ..settings.reserves import typed_reserves
from .facts import AppFacts, Facts, FleetFacts
from .finding import Level, Problem, Problems, all_facts, finding, fleet_of, join_names

#: Seconds without a tick of any dispatcher after which no dispatcher is running. Pauses of dispatchers are far shorter.
TICKS_S = 10.0

#: Effect on calls beyond a bound.
_EFFECTS = {
    REFUSE: "further calls are refused, and raise QueueFull",
    DROP_OLDEST: "each further call drops the job that has waited longest",
    DROP_NEWEST: "further calls are dropped",
}


@finding("type-waits", Level.ERROR, fleet_of, in_cohorts=True)
def type_waits(fleet: FleetFacts) -> Problems:
    """Jobs wait, and no live worker serves their type. Start a worker with `-Q` and the type, or move the jobs."""
    for type_, count in sorted(fleet.pending.items()):
        if type_ not in fleet.served:
            yield Problem(
                f"{count:,} job(s) of type {type_!r} wait, and no live worker serves it"
                f"{did_you_mean(type_, fleet.served) or '.'}",
                f"Start a worker with -Q {type_}, or `celery -A ... control add_consumer {type_}`. If the name is "
                f"wrong: `celery -A ... affinity move --type {type_} --to TYPE`, or `celery -A ... affinity cancel "
                f"--type {type_}`, which ends the jobs; their callers get REVOKED.",
            )


@finding("left-to-celery", Level.WARNING, fleet_of)
def left_to_celery(fleet: FleetFacts) -> Problems:
    """A worker over HTTP got a job that is not JSON (pickle, yaml, compressed), or whose merging needs Python, and left
    it pending for the type's Celery workers. Until one of them has taken the job, workers over HTTP that met it take no
    job of the type.
    """
    for type_ in sorted({job.type for job in fleet.left_to_celery}):
        jobs = [job for job in fleet.left_to_celery if job.type == type_]
        yield Problem(
            f"Workers over HTTP cannot run {join_names([job.job_id for job in jobs], 3)} of type {type_!r}: "
            f"{jobs[0].why}. They take no job of the type until a Celery worker has taken these.",
            "Publish calls of this task with serializer='json', without compression, or give jobs for Celery's workers "
            "a type that no worker over HTTP serves.",
        )


@finding("type-unserved", Level.WARNING, fleet_of, in_cohorts=True)
def type_unserved(fleet: FleetFacts) -> Problems:
    """A task, `task_routes`, `affinity_task_types` or a `beat_schedule` entry names a type without a live worker."""
    if not fleet.members:
        return  # reported by `no_workers`
    for type_, places in sorted(fleet.app.declared.items()):
        if type_ not in fleet.served and not fleet.pending.get(type_) and misspelt_type(type_, fleet.served) is None:
            yield Problem(
                f"No live worker serves type {type_!r}, which {join_names(places, 3)} "
                f"declare{'s' if len(places) == 1 else ''}: such a job would wait.",
                f"Start a worker with -Q {type_}.",
            )


@finding("type-misspelt", Level.WARNING, all_facts)
def type_misspelt(facts: Facts) -> Problems:
    """A task, `task_routes`, `affinity_task_types` or a `beat_schedule` entry names a type that no live worker serves
    and that differs from a served type only in case, blanks or one letter (`PDF` or `pfd` instead of `pdf`). To Celery
    these are different queues. Without workers, as in CI, types in settings are compared with the types that tasks
    declare.
    """
    declared, fleet = facts.app.declared, facts.fleet
    by_tasks = {type_ for type_, places in declared.items() if any(place.startswith("task ") for place in places)}
    for type_, places in sorted(declared.items()):
        if fleet is not None and fleet.members:
            is_right, whose = type_ in fleet.served or type_ in fleet.pending, "which live workers serve"
            meant = misspelt_type(type_, fleet.served)
        else:
            is_right, whose = type_ in by_tasks, "which tasks declare"
            meant = misspelt_type(type_, by_tasks - {type_})
        if meant is not None and not is_right:
            yield Problem(
                f"Type {type_!r}, which {join_names(places, 3)} declare{'s' if len(places) == 1 else ''}, differs only "
                f"in {'case or blanks' if similar_types(type_, [meant]) else 'one letter'} from {meant!r}, {whose}: to "
                "Celery these are different queues.",
                f"Write {meant!r} there, or start a worker with -Q '{type_}'.",
            )


@finding("bound-of-no-type", Level.WARNING, fleet_of)
def bound_of_no_type(fleet: FleetFacts) -> Problems:
    """`affinity_max_pending` has a name or pattern that matches no type of a task, worker or job. A misspelt name has
    no effect.
    """
    types = _all_types(fleet)
    for pattern in fleet.app.settings.max_pending:
        if not any(matches(pattern, type_) for type_ in types):
            yield Problem(
                f"affinity_max_pending[{pattern!r}] matches no type that a task declares, a live worker serves, or a "
                f"job waits for{did_you_mean(pattern, types) or '.'}",
                "Use the spelling of tasks and workers, or remove the bound.",
            )


@finding("reserve-of-no-type", Level.WARNING, fleet_of)
def reserve_of_no_type(fleet: FleetFacts) -> Problems:
    """`affinity_reserve` has a name or pattern that matches no type of a task, worker or job. It keeps no slot free."""
    types, reserve = _all_types(fleet), fleet.app.settings.reserve
    for pattern in (typed_reserves(reserve) or {}) if isinstance(reserve, str) else reserve:
        if not any(matches(pattern, type_) for type_ in types):
            yield Problem(
                f"affinity_reserve[{pattern!r}] matches no type that a task declares, a live worker serves, or a job "
                f"waits for: it keeps no slot free{did_you_mean(pattern, types) or '.'}",
                "Use the spelling of tasks and workers, or remove the reserve.",
            )


@finding("limit-of-no-type", Level.WARNING, fleet_of)
def limit_of_no_type(fleet: FleetFacts) -> Problems:
    """`affinity_limits` has `type:` and a name that is not a type of a task, worker or job."""
    types = _all_types(fleet)
    for pattern in fleet.app.limits:
        name = pattern.removeprefix(OF_TYPE)
        if pattern.startswith(OF_TYPE) and name not in types:
            yield Problem(
                f"affinity_limits[{pattern!r}] limits type {name!r}, which no task declares, no live worker "
                f"serves, and no job waits for{did_you_mean(name, types) or '.'}",
                "Use the spelling of tasks and workers, or remove the limit.",
            )


def _all_types(fleet: FleetFacts) -> frozenset[str]:
    return fleet.served | fleet.app.declared.keys() | fleet.pending.keys()


@finding("limit-of-no-key", Level.NOTE, fleet_of)
def limit_of_no_key(fleet: FleetFacts) -> Problems:
    """`affinity_limits` has a name or pattern that matches no key of the app's rules, and no key of a job that waits or
    runs. Keep the limit if calls set such keys themselves (`exclusive="customer:7"`).
    """
    keys = _key_patterns(fleet.app)
    if keys is None:
        return  # a function can make any key
    for pattern in fleet.app.limits:
        is_used = pattern in fleet.limits_in_use or any(patterns_overlap(pattern, key) for key in keys)
        if not pattern.startswith(OF_TYPE) and not is_used:
            yield Problem(
                f"affinity_limits[{pattern!r}] matches no key that rules of this app make "
                f"({join_names(keys) or 'none'}), and none of a job that waits or runs"
                f"{did_you_mean(pattern, keys) or '.'}",
                "Use the spelling of the rules. Keep the limit if calls say such keys themselves.",
            )


def _key_patterns(app: AppFacts) -> list[str] | None:
    """Return the keys that tasks' rules make, with ``*`` for each argument, or None if a function makes some."""
    rules = [(name, rule) for name, _, sources in app.sources for rule in sources.task_affinity.keys]
    rules += [(pattern, rule) for pattern, named in app.settings.task_rules.items() for rule in named.keys]
    patterns = []
    for name, rule in rules:
        if not isinstance(rule.key, str):
            return None
        patterns.append(rule.prefix + pattern_of(rule.option, rule.key, name))
    return list(dict.fromkeys(patterns))


@finding("hints-without-effect", Level.NOTE, fleet_of)
def hints_without_effect(fleet: FleetFacts) -> Problems:
    """Tasks have `locality=`, and neither a bonus nor weights use it."""
    values = {setting.name: setting.value for setting in fleet.settings}
    by_shares = values.get("tenant_turns") == "share"
    hinted = [f"task {name}" for name, _, sources in fleet.app.sources if sources.task_affinity.locality]
    hinted += [
        f"affinity_task_rules[{name!r}]" for name, rule in fleet.app.settings.task_rules.items() if rule.locality
    ]
    if hinted and values.get("placement") == "idle" and (by_shares or values.get("locality_bonus") == 0):
        why = 'tenants take turns by shares, so there is no bonus (affinity_tenant_turns = "share")'
        yield Problem(
            f"Jobs of {join_names(hinted, 3)} have hints (locality=), which change nothing: "
            f"{why if by_shares else 'affinity_locality_bonus is 0'}, and affinity_placement is 'idle'.",
            f"{'' if by_shares else 'Set affinity_locality_bonus, for jobs that wait, such as 80. '}Set "
            'affinity_placement = "weighted", for workers that are free. Or take the hints away: they cost a little.',
        )


@finding("bound-full", Level.ERROR, fleet_of, in_cohorts=True)
def bound_full(fleet: FleetFacts) -> Problems:
    """As many jobs of a type wait as `affinity_max_pending` admits: further calls are refused, or jobs are dropped. If
    the type is paused, the finding names the pause: resume the type, or raise the bound.
    """
    for type_ in fleet.status.types:
        if type_.bound is None or type_.pending < type_.bound.most:
            continue
        name = type_.type
        jobs = f"{type_.pending:,} jobs of type {name!r} wait, of at most {type_.bound.most:,} (affinity_max_pending)"
        jobs += f": {_EFFECTS[type_.bound.full]}"
        pauses = [one for one in fleet.status.pauses if (one.kind, one.name) == ("type", name) or one.kind == "all"]
        if pauses:
            targets = dict.fromkeys("--all" if pause.kind == "all" else name for pause in pauses)
            resume = join_names(f"`celery -A ... affinity resume {target}`" for target in targets)
            yield Problem(
                f"{jobs}. No job of the type starts, because {'; '.join(map(pause_sentence, pauses))}.",
                f"Run {resume} if the reason no longer holds. For a longer pause raise the bound.",
            )
        else:
            yield Problem(
                f"{jobs}.",
                f"Start more workers with -Q {name}, raise the bound, or `celery -A ... affinity cancel --type {name}` "
                "ends jobs that are not needed.",
            )


@finding("stock-messages", Level.ERROR, fleet_of, in_cohorts=True)
def stock_messages(fleet: FleetFacts) -> Problems:
    """Messages are in stock Celery's list of a queue that no worker serves, with either transport. Their producer does
    not have this transport: without it a call with `affinity=` goes to the list `celery`. Give the producer the
    setting; a worker with this transport that serves the queue takes the messages over.
    """
    of_stock_workers = {queue for answer in fleet.answers if not answer.ours for queue in answer.queues}
    of_workers = {queue for answer in fleet.answers for queue in answer.queues}
    for queue, messages in sorted(fleet.stock_messages.items()):
        if queue in fleet.served:
            continue  # reported by `stock_producer`
        if not fleet.app.settings.schedules(queue):
            if queue not in of_workers and fleet.not_asked is None:
                yield Problem(
                    f"{messages.messages:,} message(s) are in the list of queue {queue!r}, which affinity_queues "
                    "leaves to kombu, and no worker serves it.",
                    f"Start a worker with -Q {queue}, or add the queue to affinity_queues.",
                )
        elif queue not in of_stock_workers:
            yield Problem(
                f"{_in_stock_list(messages)} put them there, and no worker "
                f"{'with this transport ' if fleet.not_asked else ''}serves it{_oldest(messages)}. Calls of tasks with "
                "affinity= come there if their producer does not have this transport."
                f"{' Further queues were not looked at.' if fleet.more_lists else ''}",
                'Set broker_transport = "celery_affinity:Transport" in that producer, or name the queues of its calls '
                f"in task_routes. For the messages: start a worker with -Q {queue}, or `celery -A ... control "
                f"add_consumer {queue}`: it takes them over.",
            )


@finding("stock-producer", Level.NOTE, fleet_of, in_cohorts=True)
def stock_producer(fleet: FleetFacts) -> Problems:
    """Messages are in the list of a queue, and workers with this transport take them over: some producer still uses
    stock Celery's transport. If the messages stay there, the workers have no right to the list, or have
    `affinity_ingest = False`.
    """
    for queue, messages in sorted(fleet.stock_messages.items()):
        if queue in fleet.served:
            yield Problem(
                f"{_in_stock_list(messages)} sends there, and workers of ours take over what comes.",
                'Set broker_transport = "celery_affinity:Transport" in that producer. If they stay there: workers do '
                "not take them with affinity_ingest = False, or without a right to the list (their log says so).",
            )


def _in_stock_list(queue: StockQueue) -> str:
    lie = f"{queue.messages:,} message(s) lie in stock Celery's list of queue {queue.queue!r}"
    return f"{lie}: a producer with stock Celery's transport"


def _oldest(queue: StockQueue) -> str:
    age = "" if queue.oldest_s is None else f", {queue.oldest_s / 60:,.0f} min old"
    is_read = age or queue.oldest_task is not None
    return f" (the oldest: {queue.oldest_task or 'a task without a readable name'}{age})" if is_read else ""


@finding("nobody-ticks", Level.ERROR, fleet_of, in_cohorts=True)
def nobody_ticks(fleet: FleetFacts) -> Problems:
    """No dispatcher has worked for 10 s although there are scheduled jobs, or workers that have been there for as long
    and may have died. Start a worker, or `celery -A shop affinity dispatcher`.
    """
    scheduled = fleet.status.scheduled
    late = fleet.ticked_s is None or fleet.ticked_s > TICKS_S
    could_tick = [member for member in fleet.members if member.age_s is None or member.age_s > TICKS_S]
    if late and (could_tick or (scheduled and not fleet.members)):
        since = "never" if fleet.ticked_s is None else f"not for {fleet.ticked_s:,.0f} s"
        yield Problem(
            f"No dispatcher has worked here ({since}): {scheduled:,} scheduled job(s) wait past their time, and the "
            "jobs of dead workers are not reclaimed.",
            "Each live worker has a dispatcher. For a fleet without workers, run `celery -A ... affinity dispatcher`.",
        )


@finding("dead-letters", Level.WARNING, fleet_of, in_cohorts=True)
def dead_letters(fleet: FleetFacts) -> Problems:
    """There are dead letters: `celery -A shop affinity dead list`."""
    if fleet.status.dead:
        yield Problem(
            f"{fleet.status.dead:,} job(s) are dead letters: they will not run again by themselves.",
            "`celery -A ... affinity dead list` shows the reasons. Then use `dead replay` or `dead drop`.",
        )


@finding("unserved", Level.NOTE, fleet_of, in_cohorts=True)
def unserved(fleet: FleetFacts) -> Problems:
    """The number of jobs, since the first day of the fleet, that were published while no worker served their type."""
    count = fleet.status.counters.get("unserved", 0)
    if count:
        yield Problem(
            f"{count:,} job(s) were published, since the first day, while no live worker served their type.",
            "If the count grows, a type is misspelt, or its workers come and go.",
        )


@finding("reserve-too-large", Level.WARNING, fleet_of, in_cohorts=True)
def reserve_too_large(fleet: FleetFacts) -> Problems:
    """A reserve is at least as large as the number of live slots: jobs of its class run one at a time. Lower it, or
    start more workers.
    """
    for reserve in (reserve for type_ in fleet.status.types for reserve in type_.reserves if reserve.is_too_large):
        yield Problem(reserve.sentence, "Lower affinity_reserve, or start more workers.")


@finding("settings-differ", Level.WARNING, fleet_of, in_cohorts=True)
def settings_differ(fleet: FleetFacts) -> Problems:
    """The app's value of a shared setting differs from the value that a worker set last, which the fleet uses."""
    for setting in fleet.settings:
        if setting.disputed:
            yield Problem(
                f"affinity_{setting.name} is {setting.own!r} in this app.conf, and {setting.conf!r} in the app.conf of "
                "the worker that changed it last: all workers share one value.",
                "Give all apps on this broker one value, or each its own namespace in broker_transport_options.",
            )


@finding("settings-changed", Level.NOTE, fleet_of, in_cohorts=True)
def settings_changed(fleet: FleetFacts) -> Problems:
    """A setting was changed at run time: run `celery -A shop affinity settings reset NAME`, or write the value to
    `app.conf`.
    """
    for setting in fleet.settings:
        if setting.changed_at_run_time:
            yield Problem(
                f"affinity_{setting.name} is {setting.value!r}, changed at run time; app.conf has {setting.conf!r}.",
                f"To keep it, write it to app.conf; otherwise `celery -A ... affinity settings reset {setting.name}`.",
            )


@finding("settings-damaged", Level.WARNING, fleet_of, in_cohorts=True)
def settings_damaged(fleet: FleetFacts) -> Problems:
    """Another program deleted or overwrote a setting in Redis, and a repair put the value of `app.conf` in force. Set
    the value again with `celery -A shop affinity settings set NAME VALUE`, or confirm `app.conf` with `settings reset
    NAME`. Find the program.
    """
    for setting in fleet.settings:
        if setting.damaged_s is not None:
            yield Problem(
                f"Another program deleted or overwrote affinity_{setting.name} in Redis. A repair put the value of "
                f"app.conf in force, {setting.conf!r}: a change at run time is lost.",
                f"Run `celery -A ... affinity settings set {setting.name} VALUE` if it was changed at run time; "
                f"otherwise `settings reset {setting.name}`. Find the program that wrote to the fleet's keys.",
            )
