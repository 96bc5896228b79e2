"""Rules about the jobs: types without workers, bounds, messages of stock producers, dispatchers and settings."""

from collections.abc import Iterator, Sequence

from ..options.type_names import did_you_mean, misspelt_type, similar_types
from ..schema.bounds import DROP_NEWEST, DROP_OLDEST, REFUSE
from ..schema.keys import OF_TYPE
from ..schema.values import matches, patterns_overlap
from .facts import AppFacts, Facts, FleetFacts
from .finding import Finding, join_names
from .workers import rule_of_fleet, rule_of_fleet_and_app

#: Seconds without a tick of any dispatcher after which no dispatcher is running. Pauses of dispatchers are far shorter.
TICKS_S = 10.0

#: Effect on calls beyond a bound.
_EFFECTS = {
    REFUSE: "further calls are refused, and raise QueueFull",
    DROP_OLDEST: "each further call drops the job that has waited longest",
    DROP_NEWEST: "further calls are dropped",
}


def _known_types(fleet: FleetFacts, app: AppFacts) -> frozenset[str]:
    return fleet.served | app.declared.keys() | fleet.pending.keys()


@rule_of_fleet
def type_waits(fleet: FleetFacts) -> Iterator[Finding]:
    for type_, count in sorted(fleet.pending.items()):
        if count and type_ not in fleet.served:
            yield Finding(
                "type-waits",
                f"{count:,} job(s) of type {type_!r} wait, and no live worker serves it"
                f"{did_you_mean(type_, fleet.served) or '.'}",
                f"Start a worker with -Q {type_}, or `celery -A ... control add_consumer {type_}`. If nobody should: "
                f"`celery -A ... affinity cancel --type {type_}` ends the jobs, and their callers get REVOKED.",
            )


@rule_of_fleet
def left_to_celery(fleet: FleetFacts) -> Iterator[Finding]:
    for type_ in sorted({job.type for job in fleet.left_to_celery}):
        jobs = [job for job in fleet.left_to_celery if job.type == type_]
        yield Finding(
            "left-to-celery",
            f"Workers over HTTP cannot run {join_names([job.job_id for job in jobs], 3)} of type {type_!r}: "
            f"{jobs[0].why}. They take no job of the type until a Celery worker has taken these.",
            "Publish calls of this task with serializer='json', without compression, or give jobs for Celery's workers "
            "a type that no worker over HTTP serves.",
        )


@rule_of_fleet_and_app
def type_unserved(fleet: FleetFacts, app: AppFacts) -> Iterator[Finding]:
    if not fleet.members:
        return  # reported by `no_workers`
    for type_, places in sorted(app.declared.items()):
        if type_ not in fleet.served and not fleet.pending.get(type_) and misspelt_type(type_, fleet.served) is None:
            yield Finding(
                "type-unserved",
                f"No live worker serves type {type_!r}, which {join_names(places, 3)} "
                f"declare{'s' if len(places) == 1 else ''}: such a job would wait.",
                f"Start a worker with -Q {type_}.",
            )


@rule_of_fleet_and_app
def type_misspelt(fleet: FleetFacts, app: AppFacts) -> Iterator[Finding]:
    for type_, places in sorted(app.declared.items()):
        meant = misspelt_type(type_, fleet.served)
        if meant is not None and type_ not in fleet.served and not fleet.pending.get(type_):
            yield _misspelt(type_, places, meant, "which live workers serve")


def declared_misspelt(facts: Facts) -> Iterator[Finding]:
    """Compare types with the types that tasks declare, if no worker is alive."""
    if facts.fleet is not None and facts.fleet.members:
        return
    task_types = {type_ for type_, places in facts.app.declared.items() if any(map(_is_declared_by_task, places))}
    for type_, places in sorted(facts.app.declared.items()):
        meant = misspelt_type(type_, task_types - {type_})
        if meant is not None and not any(map(_is_declared_by_task, places)):
            yield _misspelt(type_, places, meant, "which tasks declare")


def _misspelt(type_: str, places: Sequence[str], meant: str, whose: str) -> Finding:
    return Finding(
        "type-misspelt",
        f"Type {type_!r}, which {join_names(places, 3)} declare{'s' if len(places) == 1 else ''}, differs only in "
        f"{'case or blanks' if similar_types(type_, [meant]) else 'one letter'} from {meant!r}, {whose}: to Celery "
        "these are different queues.",
        f"Write {meant!r} there, or start a worker with -Q '{type_}'.",
    )


def _is_declared_by_task(declaration: str) -> bool:
    return declaration.startswith("task ")


@rule_of_fleet_and_app
def bound_of_no_type(fleet: FleetFacts, app: AppFacts) -> Iterator[Finding]:
    types = _known_types(fleet, app)
    for pattern in app.bounds:
        if not any(matches(pattern, type_) for type_ in types):
            yield Finding(
                "bound-of-no-type",
                f"affinity_max_pending[{pattern!r}] matches no type that a task declares, a live worker serves, or a "
                f"job waits for{did_you_mean(pattern, types) or '.'}",
                "Use the spelling of tasks and workers, or remove the bound.",
            )


@rule_of_fleet_and_app
def reserve_of_no_type(fleet: FleetFacts, app: AppFacts) -> Iterator[Finding]:
    types = _known_types(fleet, app)
    for pattern in app.reserves:
        if not any(matches(pattern, type_) for type_ in types):
            yield Finding(
                "reserve-of-no-type",
                f"affinity_reserve[{pattern!r}] matches no type that a task declares, a live worker serves, or a job "
                f"waits for: it keeps no slot free{did_you_mean(pattern, types) or '.'}",
                "Use the spelling of tasks and workers, or remove the reserve.",
            )


@rule_of_fleet_and_app
def limit_of_nothing(fleet: FleetFacts, app: AppFacts) -> Iterator[Finding]:
    types = _known_types(fleet, app)
    for pattern in app.limits:
        name = pattern.removeprefix(OF_TYPE)
        if pattern.startswith(OF_TYPE):
            if name not in types:
                yield Finding(
                    "limit-of-no-type",
                    f"affinity_limits[{pattern!r}] limits type {name!r}, which no task declares, no live worker "
                    f"serves, and no job waits for{did_you_mean(name, types) or '.'}",
                    "Use the spelling of tasks and workers, or remove the limit.",
                )
        elif not _can_match_a_key(pattern, fleet, app):
            made = join_names(app.key_patterns or ()) or "none"
            yield Finding(
                "limit-of-no-key",
                f"affinity_limits[{pattern!r}] matches no key that rules of this app make ({made}), and none of a job "
                f"that waits or runs{did_you_mean(pattern, app.key_patterns or ()) or '.'}",
                "Use the spelling of the rules. Keep the limit if calls say such keys themselves.",
            )


def _can_match_a_key(pattern: str, fleet: FleetFacts, app: AppFacts) -> bool:
    """True if a job can have a key that *pattern* matches. A function can make any key."""
    if app.key_patterns is None or pattern in fleet.limits_in_use:
        return True
    return any(patterns_overlap(pattern, other) for other in app.key_patterns)


@rule_of_fleet_and_app
def hints_without_effect(fleet: FleetFacts, app: AppFacts) -> Iterator[Finding]:
    values = {setting.name: setting.value for setting in fleet.settings}
    by_shares = values.get("tenant_turns") == "share"
    if app.hinted and values.get("placement") == "idle" and (by_shares or values.get("locality_bonus") == 0):
        why = 'tenants take turns by shares, so there is no bonus (affinity_tenant_turns = "share")'
        yield Finding(
            "hints-without-effect",
            f"Jobs of {join_names(app.hinted, 3)} have hints (locality=), which change nothing: "
            f"{why if by_shares else 'affinity_locality_bonus is 0'}, and affinity_placement is 'idle'.",
            f"{'' if by_shares else 'Set affinity_locality_bonus, for jobs that wait, such as 80. '}Set "
            'affinity_placement = "weighted", for workers that are free. Or take the hints away: they cost a little.',
        )


@rule_of_fleet
def bound_full(fleet: FleetFacts) -> Iterator[Finding]:
    for full in fleet.full:
        effect = _EFFECTS[full.effect]
        jobs = f"{full.pending:,} jobs of type {full.type!r} wait, of at most {full.most:,} (affinity_max_pending)"
        jobs += f": {effect}"
        if full.pauses:
            targets = dict.fromkeys("--all" if pause.startswith("all") else full.type for pause in full.pauses)
            resume = join_names(f"`celery -A ... affinity resume {name}`" for name in targets)
            yield Finding(
                "bound-full",
                f"{jobs}. No job of the type starts, because {'; '.join(full.pauses)}.",
                f"Run {resume} if the reason no longer holds. For a longer pause raise the bound.",
            )
        else:
            yield Finding(
                "bound-full",
                f"{jobs}.",
                f"Start more workers with -Q {full.type}, raise the bound, or `celery -A ... affinity cancel --type "
                f"{full.type}` ends jobs that nobody needs.",
            )


@rule_of_fleet
def stock_messages(fleet: FleetFacts) -> Iterator[Finding]:
    of_stock_workers = {queue for answer in fleet.answers if not answer.ours for queue in answer.queues}
    of_workers = {queue for answer in fleet.answers for queue in answer.queues}
    for queue, count in sorted(fleet.stock_messages.items()):
        lie = f"{count:,} message(s) lie in stock Celery's list of queue {queue!r}: a producer with stock Celery's "
        if queue in fleet.served:
            yield Finding(
                "stock-producer",
                f"{lie}transport sends there, and workers of ours take over what comes.",
                'Set broker_transport = "celery_affinity:Transport" in that producer. If they stay there: workers do '
                "not take them with affinity_ingest = False, or without a right to the list (their log says so).",
            )
        elif queue in fleet.left_to_kombu:
            if queue not in of_workers and fleet.not_asked is None:
                yield Finding(
                    "stock-messages",
                    f"{count:,} message(s) lie in the list of queue {queue!r}, which affinity_queues leaves to kombu, "
                    "and no worker serves it.",
                    f"Start a worker with -Q {queue}, or add the queue to affinity_queues.",
                )
        elif queue not in of_stock_workers:
            yield Finding(
                "stock-messages",
                f"{lie}transport put them there, and no worker {'with this transport ' if fleet.not_asked else ''}"
                f"serves it{_oldest(fleet, queue)}. Calls of tasks with affinity= come there if their producer does "
                "not have this transport."
                f"{' Further queues were not looked at.' if fleet.more_lists else ''}",
                'Set broker_transport = "celery_affinity:Transport" in that producer, or name the queues of its calls '
                f"in task_routes. For the messages: start a worker with -Q {queue}, or `celery -A ... control "
                f"add_consumer {queue}`: it takes them over.",
            )


def _oldest(fleet: FleetFacts, queue: str) -> str:
    return f" (the oldest: {fleet.oldest[queue]})" if queue in fleet.oldest else ""


@rule_of_fleet
def nobody_ticks(fleet: FleetFacts) -> Iterator[Finding]:
    late = fleet.ticked_s is None or fleet.ticked_s > TICKS_S
    could_tick = [member for member in fleet.members if member.age_s is None or member.age_s > TICKS_S]
    if late and (could_tick or (fleet.scheduled and not fleet.members)):
        since = "never" if fleet.ticked_s is None else f"not for {fleet.ticked_s:,.0f} s"
        yield Finding(
            "nobody-ticks",
            f"No dispatcher has worked here ({since}): {fleet.scheduled:,} scheduled job(s) wait past their time, and "
            "the jobs of dead workers do not come back.",
            "Each live worker has a dispatcher. For a fleet without workers, run `celery -A ... affinity dispatcher`.",
        )


@rule_of_fleet
def dead_letters(fleet: FleetFacts) -> Iterator[Finding]:
    if fleet.dead:
        yield Finding(
            "dead-letters",
            f"{fleet.dead:,} job(s) are dead letters: they will not run again by themselves.",
            "`celery -A ... affinity dead list` shows the reasons. Then use `dead replay` or `dead drop`.",
        )


@rule_of_fleet
def unserved(fleet: FleetFacts) -> Iterator[Finding]:
    if fleet.unserved:
        yield Finding(
            "unserved",
            f"{fleet.unserved:,} job(s) were published, since the first day, while no live worker served their type.",
            "If the count grows, a type is misspelt, or its workers come and go.",
        )


@rule_of_fleet
def reserve_too_large(fleet: FleetFacts) -> Iterator[Finding]:
    for sentence in fleet.reserves:
        yield Finding("reserve-too-large", sentence, "Lower affinity_reserve, or start more workers.")


@rule_of_fleet
def settings_differ(fleet: FleetFacts) -> Iterator[Finding]:
    for setting in fleet.settings:
        if setting.conf != setting.own:
            yield Finding(
                "settings-differ",
                f"affinity_{setting.name} is {setting.own!r} in this app.conf, and {setting.conf!r} in the app.conf of "
                "the worker that changed it last: all workers share one value.",
                "Give all apps on this broker one value, or each its own namespace in broker_transport_options.",
            )


@rule_of_fleet
def settings_changed(fleet: FleetFacts) -> Iterator[Finding]:
    for setting in fleet.settings:
        if setting.value != setting.conf:
            yield Finding(
                "settings-changed",
                f"affinity_{setting.name} is {setting.value!r}, changed at run time; app.conf says {setting.conf!r}.",
                f"To keep it, write it to app.conf; otherwise `celery -A ... affinity settings reset {setting.name}`.",
            )


@rule_of_fleet
def settings_damaged(fleet: FleetFacts) -> Iterator[Finding]:
    for setting in fleet.settings:
        if setting.is_damaged:
            yield Finding(
                "settings-damaged",
                f"Another program deleted or overwrote affinity_{setting.name} in Redis. A repair put the value of "
                f"app.conf in force, {setting.conf!r}: a change at run time is lost.",
                f"Run `celery -A ... affinity settings set {setting.name} VALUE` if it was changed at run time; "
                f"otherwise `settings reset {setting.name}`. Find the program that wrote to the fleet's keys.",
            )


RULES = (
    type_waits,
    left_to_celery,
    type_unserved,
    type_misspelt,
    declared_misspelt,
    bound_of_no_type,
    reserve_of_no_type,
    limit_of_nothing,
    bound_full,
    hints_without_effect,
    stock_messages,
    nobody_ticks,
    dead_letters,
    unserved,
    reserve_too_large,
    settings_differ,
    settings_changed,
    settings_damaged,
)
