"""Random runs through the moves of a machine. A failing run is shortened and simplified before it is shown."""

from itertools import count
from random import Random
from time import monotonic

from .draw import Choices

#: Seconds spent on shrinking a failure.
_SHRINK_FOR_S = 60


class Moves:
    """The moves of a machine: methods, each with a weight and draws for its arguments."""

    def __init__(self):
        self._weighed = []

    def often(self, weight, **arguments):
        """Register a method as a move."""

        def add(method):
            self._weighed += [(method.__name__, arguments)] * weight
            # The simplest moves are first, because failures shrink to them.
            self._weighed.sort(key=lambda move: len(move[1]))
            return method

        return add

    def draw(self, choices):
        """Return the next move: a method's name and its arguments."""
        name, arguments = self._weighed[choices.below(len(self._weighed))]
        return name, {argument: draw(choices) for argument, draw in arguments.items()}


class _Failed(Exception):
    """The last move of a run failed. *walk* has its choices, *moves* the resulting moves."""

    def __init__(self, walk, moves, error):
        self.walk, self.moves, self.error = walk, moves, error


def run(make, *, steps, steps_in_a_run, seed, shrink=True):
    """Make *steps* random moves, at most *steps_in_a_run* on one machine that *make* returns.

    A machine has `begin`, a function from `Choices` to its first move, `moves`, and `end`. An error of a move is raised
    with the number of the step and the seed of the run, which then is the first run with this seed.
    """
    done = 0
    for each in count(seed):
        length = min(steps_in_a_run, steps - done)
        if length <= 0:
            return
        random = Random(each)
        try:
            _walk(make(), (Choices(random) for _ in range(1 + length)))
        except _Failed as failed:
            smallest = _smallest(make, failed) if shrink else failed
            error = smallest.error
            error.add_note(_described(smallest, done + len(failed.moves) - 1, each))
            raise error from None
        done += length


def _walk(machine, several_choices):
    walk, moves = [], []
    try:
        for choices in several_choices:
            draw = machine.moves.draw if moves else machine.begin
            name, arguments = draw(choices)
            walk.append(choices.made)
            moves.append((name, arguments))
            getattr(machine, name)(**arguments)
        machine.end()
    except Exception as error:  # any error is a finding
        raise _Failed(walk, moves, error) from error


def _described(failed, step, seed):
    moves = "\n".join(
        f"  {name}({', '.join(f'{argument}={value!r}' for argument, value in arguments.items())})"
        for name, arguments in failed.moves
    )
    return f"failed at step {step}; SEED={seed} begins with this run, made smaller here:\n{moves}"


def _smallest(make, failed):
    """Leave out moves, first many together; then make choices smaller."""
    until_s = monotonic() + _SHRINK_FOR_S

    def again(walk):
        nonlocal failed
        if monotonic() > until_s:
            return False
        try:
            _walk(make(), [Choices(given=given) for given in walk])
        except _Failed as found:
            failed = found
            return True
        return False

    size = len(failed.walk)
    while size := size // 2:
        _leave_out(again, size, lambda: failed.walk)
    for number in range(len(failed.walk)):
        _make_smaller(again, number, lambda: failed.walk)
    _leave_out(again, 1, lambda: failed.walk)
    return failed


def _leave_out(again, size, walk):
    first = len(walk())
    while first > 1:  # never the beginning
        first = max(1, min(first, len(walk())) - size)
        again(walk()[:first] + walk()[first + size :])


def _make_smaller(again, number, walk):
    place = 0
    while number < len(walk()) and place < len(walk()[number]):
        choice = walk()[number][place]
        for smaller in (0, choice // 2, choice - 1):
            if smaller < choice:
                changed = [*walk()[number]]
                changed[place] = smaller
                if again([*walk()[:number], changed, *walk()[number + 1 :]]):
                    break
        place += 1
