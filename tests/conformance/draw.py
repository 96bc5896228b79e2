"""Draws of a random walk: each function here returns a function from `Choices` to a value.

Like hypothesis' strategies, at a hundredth of their cost. Put the simplest value first: a failure is made smaller by
making choices smaller.
"""


class Choices:
    """Whole numbers, drawn at random or *given*: earlier numbers can be drawn again, or smaller ones."""

    def __init__(self, random=None, given=()):
        self._random, self._given = random, iter(given)
        self.made = []

    def below(self, number):
        """Return one of 0 to *number* - 1. A given number may come from another draw, and is bent to fit."""
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
