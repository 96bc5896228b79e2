"""The parts of the benchmark. Each part uses its own server."""

import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

from .arrows import fleets, longest_script_ms, scales
from .bench import Bench, in_turn
from .drain import drain
from .idle import idle
from .in_turns import KEYED, METRICS, OF_TENANTS, Compared, measured
from .latency import compared, idle_workers, latency
from .load import on_demand, slots
from .loss import loss
from .memory import Store, memory
from .observers import looks
from .observers import scales as pending_scales
from .on_cluster import PART as CLUSTER
from .on_cluster import measured as measured_on_cluster
from .options import Options
from .publish import publish, ways
from .recording import RECORDED
from .recording import measured as recorded
from .results import Named, Part, Results
from .sharing import Sharer, sharing
from .systems import AFFINITY, BEFORE, DRAMATIQ, STOCK, WAITING_MS, Variant, away_variants, variants, waiting_variants
from .viewers import page

#: An older server that is still common. It is measured if it is installed.
_OTHER_SERVER = "redis-server"


def measure_publish(options: Options) -> Results:
    before = next((variant for variant in variants(options.before) if variant.system == BEFORE), None)
    subjects = options.chosen(ways(before))
    with Bench(options.server) as bench:
        return {"publish": in_turn(subjects, options.rounds, lambda way: publish(bench, way, options.publish_tasks))}


def measure_drain(options: Options) -> Results:
    subjects = options.chosen(_variants(options))
    with Bench(options.server) as bench:
        return {"drain": in_turn(subjects, options.rounds, lambda variant: drain(bench, variant, options.drain_tasks))}


def measure_metrics(options: Options) -> Results:
    return {"metrics": _in_turns(METRICS, options)}


def measure_keys(options: Options) -> Results:
    return {"keys": _in_turns(KEYED, options)}


def measure_tenants(options: Options) -> Results:
    return {"tenants": _in_turns(OF_TENANTS, options)}


def measure_recording(options: Options) -> Results:
    """Measure drains of many tasks, because a turn lasts several heartbeats."""
    with Bench(options.server) as bench:
        subjects = options.chosen(RECORDED)
        return {"recording": recorded(bench, subjects, options.rounds, options.recorded_tasks)}


def _in_turns(compared: list[Compared], options: Options) -> Part:
    with Bench(options.server) as bench:
        return measured(bench, options.chosen(compared), options.rounds, options.drain_tasks)


def measure_latency(options: Options) -> Results:
    subjects = options.chosen(compared(_variants(options)))
    with Bench(options.server) as bench, idle_workers(bench, subjects) as workers:
        return {"latency": in_turn(workers, options.rounds, lambda worker: latency(worker, options.latency_jobs))}


def measure_idle(options: Options) -> Results:
    subjects = options.chosen(compared(_variants(options)))
    return {"idle": idle(subjects, options.idle_s, options.idle_rounds, options.server)}


def measure_load(options: Options) -> Results:
    subjects = options.chosen([variant for variant in _of_prefork(options) if variant.system in (AFFINITY, BEFORE)])
    turns: Counter[str] = Counter()

    def measure(variant: Variant) -> dict[str, float]:
        turns[variant.name] += 1
        return on_demand(bench, variant, options.load_s, seed=turns[variant.name])

    with Bench(options.server) as bench:
        return {"load": in_turn(subjects, options.rounds, measure)}


def measure_slots(options: Options) -> Results:
    with Bench(options.server) as bench:
        return {
            "slots": in_turn(
                options.chosen([variant for variant in _variants(options) if variant.pool == "prefork"]),
                options.rounds,
                lambda variant: slots(bench, variant, options.slot_tasks),
            )
        }


def measure_waits(options: Options) -> Results:
    """Measure tasks that wait for 100 ms, in ten threads."""
    subjects = options.chosen(waiting_variants(options.before))
    with Bench(options.server) as bench:
        return {
            "waits": in_turn(
                subjects, options.rounds, lambda variant: slots(bench, variant, options.slot_tasks, WAITING_MS)
            )
        }


def measure_away(options: Options) -> Results:
    """Measure drains with network latency between the worker and the server."""
    subjects = options.chosen(away_variants(options.before))
    with Bench(options.server) as bench:
        return {
            "away": in_turn(subjects, options.rounds, lambda variant: drain(bench, variant, options.drain_tasks // 3))
        }


def measure_arrows(options: Options) -> Results:
    """Measure the server functions at all scales, and `scripts`: their longest invocation at the largest backlog."""
    chosen = [scale for scale in scales(options.largest) if options.every_variant or scale.is_for_a_goal]
    with fleets(options.chosen(chosen), options.server) as built:
        results = {"arrows": in_turn(built, options.rounds, lambda fleet: fleet.costs(options.arrow_calls))}
        pending = [fleet for fleet in built if fleet.scale.axis == "pending"]
        if pending:
            scripts = results["scripts"] = Part()
            for name, longest_ms in longest_script_ms(pending[-1], options.live_rounds).items():
                scripts.add(Named(name), {f"longest of {pending[-1].scale.pending:,}, ms": longest_ms})
    return results


def measure_observers(options: Options) -> Results:
    part = Part()
    for scale in options.chosen(pending_scales(options.largest)):
        with looks(scale, options.server) as observers:
            part.extend(in_turn(observers, 1, lambda observer: observer.costs(options.looks)))
    return {"observers": part}


def measure_cluster(options: Options) -> Results:
    return {CLUSTER: measured_on_cluster(options.chosen, options.server, options.rounds, options.drain_tasks)}


def measure_page(options: Options) -> Results:
    return {"page": page(options.page_s, options.page_jobs, options.server)}


def measure_memory(options: Options) -> Results:
    systems = (Variant(STOCK, "solo"), Variant(AFFINITY, "solo"), Variant(DRAMATIQ, "threads"))
    servers = {"valkey": None, "redis": _OTHER_SERVER} if shutil.which(_OTHER_SERVER) else {"valkey": None}
    with ExitStack() as stack:
        benches = {name: stack.enter_context(Bench(executable)) for name, executable in servers.items()}
        stores = [Store(variant, bench, name) for name, bench in benches.items() for variant in systems]
        return {"memory": in_turn(options.chosen(stores), 1, lambda store: memory(store, options.memory_jobs))}


def measure_sharing(options: Options) -> Results:
    subjects = options.chosen([Sharer(results=options.shared_results)])
    with Bench(options.server) as bench:
        return {"sharing": in_turn(subjects, options.rounds, lambda sharer: sharing(bench, sharer))}


def measure_loss(options: Options) -> Results:
    subjects = [variant for variant in compared(_variants(options)) if variant.pool != "threads"]
    with Bench(options.server) as bench:
        return {"loss": in_turn(options.chosen(subjects), 1, lambda variant: loss(bench, variant, options.kills))}


def _variants(options: Options) -> list[Variant]:
    return [variant for variant in variants(options.before) if options.every_variant or variant.is_for_a_goal]


def _of_prefork(options: Options) -> list[Variant]:
    """Return the prefork variants with late acks."""
    return [variant for variant in _variants(options) if variant.pool == "prefork" and variant.late]


PARTS: dict[str, Callable[[Options], Results]] = {
    "publish": measure_publish,
    "drain": measure_drain,
    "latency": measure_latency,
    "idle": measure_idle,
    "load": measure_load,
    "slots": measure_slots,
    "waits": measure_waits,
    "away": measure_away,
    "arrows": measure_arrows,
    "observers": measure_observers,
    "page": measure_page,
    "memory": measure_memory,
    "sharing": measure_sharing,
    "metrics": measure_metrics,
    "keys": measure_keys,
    "tenants": measure_tenants,
    "recording": measure_recording,
    CLUSTER: measure_cluster,
    "loss": measure_loss,
}
