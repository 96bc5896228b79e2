"""Canvas primitives."""

from celery import chain, chord, group
from celery.canvas import StampingVisitor

from . import scenario


@scenario
def chains(side):
    add = side.tasks().add
    linked = chain(add.s(1, 2), add.s(3), add.s(4))()
    piped = (add.s(1, 1) | add.s(2)).apply_async(countdown=0.2)
    return [side.outcome(each) for each in (linked, linked.parent, linked.parent.parent, piped)]


@scenario
def broken_chain(side):
    tasks = side.tasks()
    key = "error"
    broken = chain(tasks.add.s(1, 2), tasks.fail.si("in the middle"), tasks.note.s("never"))
    broken.link_error(tasks.on_error.s(key))
    result = broken()
    return side.outcome(result.parent), side.outcome(result), side.records(key, 1)


@scenario
def groups(side):
    tasks = side.tasks()
    results = group(tasks.add.s(n, n) for n in range(5))()
    mixed = group([tasks.add.s(1, 1), tasks.fail.s("one of them")])()
    mixed.join(propagate=False, timeout=20)
    nested = group(group(tasks.add.s(n, 1) for n in range(2)), chain(tasks.add.s(1, 1), tasks.add.s(1)))()
    return (
        results.get(timeout=20),
        [results.completed_count(), results.successful()],
        sorted([mixed.failed(), mixed.completed_count(), mixed.ready()]),
        nested.get(timeout=20),
    )


@scenario
def chords(side):
    tasks = side.tasks()
    simple = chord([tasks.add.s(n, 1) for n in range(5)])(tasks.total.s())
    inner = chord([tasks.add.s(n, 1) for n in range(2)], tasks.total.s())
    nested = chord([inner, tasks.add.s(5, 5)])(tasks.total.s())
    within = chain(tasks.add.s(1, 1), group(tasks.add.s(n) for n in range(3)), tasks.total.s(), tasks.add.s(100))()
    of_one = chord([tasks.add.s(1, 1)])(tasks.total.s())
    empty = chord([])(tasks.total.s())
    upgraded = (group(tasks.add.s(1, 1), tasks.add.s(2, 2)) | tasks.total.s() | tasks.add.s(1)).apply_async()
    grown = chord([tasks.grow_the_chord.s(1)])(tasks.total.s())
    return [side.outcome(each) for each in (simple, nested, within, of_one, empty, upgraded, grown)]


@scenario
def failing_chords(side):
    tasks = side.tasks()
    key = "chord"
    header = chord([tasks.add.s(1, 1), tasks.fail.s("in the header")])(tasks.total.s())
    body = chord([tasks.add.s(1, 1)])(tasks.fail.si("in the body"))
    nested = chord([group(tasks.fail.s("deep"), tasks.add.s(1, 1)), tasks.add.s(1, 1)])(tasks.total.s())
    with_errback = chord([tasks.fail.s("errback")], tasks.total.s().on_error(tasks.on_error.s(key)))()
    ends = [side.outcome(each) for each in (header, body, nested, with_errback)]
    return ends, len(side.records(key, 1))


@scenario
def starmap_and_chunks(side):
    add = side.tasks().add
    pairs = [(n, n) for n in range(6)]
    return [
        side.outcome(add.starmap(pairs).delay()),
        side.outcome(side.tasks().total.map([[1, 2], [3]]).delay()),
        add.chunks(pairs, 2).group()().get(timeout=20),
        add.chunks(pairs, 4).delay().get(timeout=20),
    ]


@scenario
def callbacks(side):
    tasks = side.tasks()
    key, failed, both = "linked", "failed", "all of them"
    tasks.add.apply_async((1, 2), link=tasks.note.si(key, "linked"))
    tasks.add.apply_async((1, 2), link=[tasks.note.si(both, 1), tasks.note.si(both, 2)])
    tasks.fail.apply_async(("broken",), link_error=tasks.on_error.s(failed))
    tasks.fail.apply_async(("broken",), link_error=[tasks.note.si(both, 3), tasks.on_error.s(both)])
    return side.records(key, 1), side.records(failed, 1), sorted(side.records(both, 4), key=str)


@scenario
def replacement(side):
    tasks = side.tasks()
    first = tasks.replaced.delay(1)
    in_a_chain = chain(tasks.replaced.s(1), tasks.add.s(100))()
    in_a_chord = chord([tasks.replaced.s(1), tasks.add.s(1, 1)])(tasks.total.s())
    by_a_group = chain(tasks.replaced_by_group.s(3), tasks.total.s())()
    return [side.outcome(each) for each in (first, in_a_chain, in_a_chord, by_a_group)]


class _Stamp(StampingVisitor):
    def on_signature(self, signature, **headers):
        return {"x_stamp": "of a visitor", "stamped_headers": ["x_stamp"]}


@scenario
def stamping(side):
    tasks = side.tasks()
    one = tasks.stamps.s()
    one.stamp(_Stamp())
    line = chain(tasks.stamps.s(), tasks.stamps.s())
    line.stamp(x_mine="given")
    several = group(tasks.stamps.s(), tasks.stamps.s())
    several.stamp(_Stamp())
    option = tasks.stamps.apply_async(headers={"x_plain": 1}, stamped_headers=["x_plain"], x_plain=1)
    return [
        side.outcome(one.apply_async()),
        side.outcome(line.apply_async()),
        several.apply_async().get(timeout=20),
        side.outcome(option),
    ]


@scenario
def publishing_task(side):
    key = "many"
    side.tasks().fan_out.delay(key, 60).get(timeout=20)
    return sorted(side.records(key, 60))


@scenario
def options_of_signatures(side):
    tasks = side.tasks()
    signature = tasks.request_of.s().set(queue="routed", priority=3, headers={"x_custom": "mine"}, countdown=0.1)
    cloned = tasks.request_of.signature((), immutable=True).clone()
    grouped = group(tasks.request_of.s(), tasks.request_of.s()).apply_async(queue="routed")
    return (
        side.outcome(signature.apply_async()),
        side.outcome(cloned.delay()),
        side.outcome(side.app.signature("parity.add", args=(2, 2)).delay()),
        [each["routing_key"] for each in grouped.get(timeout=20)],
    )
