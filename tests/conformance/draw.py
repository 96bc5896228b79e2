"""Draws of a random run: each function here returns a function from `Choices` to a value.

Similar to Hypothesis strategies, at a hundredth of their cost. Put the simplest value first, because shrinking makes
choices smaller.
"""


class Choices:
    """Whole numbers, drawn at random or *given*. Earlier numbers can be replayed, or made smaller."""

    def __init__(self, random=None, given=()):
        self._random, self._given = random, iter(given)
        self.made = []

    def below(self, number):
        """Return a number from 0 to *number* - 1. A given number may come from another draw, and is reduced to fit."""
        choice = int(self._random.random() * number) if self._random else next(self._given, 0) % number
        self.made.append(choice)
        return choice


def sampled_from(values):
    return lambda choices: values[choices.below(len(values))]


def booleans():
    return sampled_from((False, True))


def integers(first, last):
    return lambda choices: first + choices.below(last - first + 1)


def lists(each, *, min_size=0, max_size):
    sizes = integers(min_size, max_size)
    return lambda choices: [each(choices) for _ in range(sizes(choices))]


def tuples(*several):
    return lambda choices: tuple([each(choices) for each in several])


def mapped(function, given):
    return lambda choices: function(given(choices))
