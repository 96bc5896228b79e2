"""The parts: each is measured on a server of its own."""

from collections.abc import Callable

from .bench import Bench, in_turn
from .drain import drain
from .options import Options
from .publish import publish, ways
from .results import Part
from .systems import variants


def measure_publish(options: Options) -> Part:
    before = next((each for each in variants(options.before) if each.source), None)
    with Bench(options.server) as bench:
        return in_turn(
            options.chosen(ways(before)), options.rounds, lambda way: publish(bench, way, options.publish_tasks)
        )


def measure_drain(options: Options) -> Part:
    subjects = [each for each in variants(options.before) if options.every_variant or each.is_for_a_goal]
    with Bench(options.server) as bench:
        return in_turn(
            options.chosen(subjects), options.rounds, lambda variant: drain(bench, variant, options.drain_tasks)
        )


PARTS: dict[str, Callable[[Options], Part]] = {
    "publish": measure_publish,
    "drain": measure_drain,
}
