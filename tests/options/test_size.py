"""The option ``size``: which values it accepts, and the size of a call."""

import json
import math

import pytest

from celery_affinity.errors import OptionError
from celery_affinity.options.affinity import NOTHING, Affinity, affinity_of_pattern
from celery_affinity.options.key_templates import arguments_read_by
from celery_affinity.options.keys import Size


def render(pages, scale=2):
    """A task's function."""


def size_of(key, *args, **kwargs):
    return Size(key).of_call("shop.render", arguments_read_by(render), args, kwargs)


@pytest.mark.parametrize("size", ["", "pages", "{}", "{pages:3}", 5, True, ["{pages}"]])
def test_other_values_than_templates_and_functions_are_refused(size):
    with pytest.raises(OptionError, match="size"):
        Affinity(size=size)


def test_size_is_no_rule_of_a_job():
    assert not Affinity(size="{pages}").has_rules
    assert affinity_of_pattern({"size": "{pages}"}) == Affinity(size="{pages}")
    assert NOTHING.size is None


def test_template_and_function_give_the_size_of_a_call():
    assert size_of("{pages}", 12) == 12
    assert size_of("{scale}", 12) == 2
    assert size_of("{args[0]}", pages="2.5") == 2.5
    assert size_of(lambda args, kwargs: args[0] * kwargs["scale"], 3, scale=4) == 12
    assert size_of("{pages}", None) is None
    assert size_of(lambda args, kwargs: None, 3) is None


@pytest.mark.parametrize("pages", [-1, math.nan, math.inf, "many", [], 1e13, 10**400])
def test_size_that_is_no_number_is_refused(pages):
    for key in ("{pages}", lambda args, kwargs: args[0]):
        with pytest.raises(OptionError, match=r"size of a call of task shop\.render must be a number from 0 to 1e"):
            size_of(key, pages)


def test_template_can_be_written_into_a_message():
    assert json.loads(json.dumps(Affinity(size="{pages}").__json__(), default=lambda size: size.__json__())) == {
        "size": "{pages}"
    }
    with pytest.raises(OptionError, match="size must be a template"):
        Affinity(size=lambda args, kwargs: 1).size.__json__()
