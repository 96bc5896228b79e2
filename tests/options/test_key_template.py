"""Templates of keys: filled by the arguments of a call, as the task would get them."""

import functools
import inspect
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_affinity import OptionError
from celery_affinity.options.key_templates import (
    CallArguments,
    ReadArguments,
    TemplateField,
    arguments_read_by,
    fill_template,
    parse_template,
    template_complaint,
)


def reroute(area, city=None, /, force=False, *, deep, depth=3):
    pass


def anything(*args, **kwargs):
    pass


def fill(template, function, *args, **kwargs):
    return fill_template("exclusive", template, "proj.reroute", ReadArguments(function), args, kwargs)


@pytest.mark.parametrize(
    ("template", "key"),
    [
        ("city:{city}", "city:HH"),
        ("{area}/{force}", "north/False"),
        ("{depth}{deep}", "35"),
        ("{args[0]}{args[1]}{args[2]}", "northHHFalse"),
        ("{task}: {{{area}}}", "proj.reroute: {north}"),
        ("all", "all"),
    ],
)
def test_a_template_is_filled_as_the_task_is_called(template, key):
    assert fill(template, reroute, "north", "HH", deep=5) == key


@given(st.data())
def test_what_a_template_finds_is_what_python_binds(data):
    names = data.draw(st.lists(st.sampled_from(string.ascii_lowercase), unique=True, max_size=6).map(sorted))
    defaults = data.draw(st.integers(0, len(names)))
    by_name = data.draw(st.integers(0, len(names)))
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY if i >= by_name else inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=inspect.Parameter.empty if i < len(names) - defaults else f"default of {name}",
        )
        for i, name in enumerate(names)
    ]

    def function(*args, **kwargs):
        pass

    function.__signature__ = inspect.Signature(parameters)
    args = data.draw(st.lists(st.integers(), max_size=by_name))
    rest = names[len(args) :]
    kwargs = {name: data.draw(st.integers()) for name in rest if data.draw(st.booleans())}
    try:
        bound = function.__signature__.bind(*args, **kwargs)
    except TypeError:
        return
    bound.apply_defaults()
    for name in names:
        assert fill(f"{{{name}}}", function, *args, **kwargs) == str(bound.arguments[name])


@pytest.mark.parametrize("template", ["{city}", "a:{city}:{area}", "{args[1]}"])
def test_an_argument_that_is_none_makes_no_key(template):
    assert fill(template, reroute, "north", deep=1) is None


def test_the_first_argument_of_a_method_is_not_one_of_the_call():
    class Task:
        def run(self, city):
            pass

    assert arguments_read_by(Task().run) is arguments_read_by(Task().run)
    assert fill_template("exclusive", "{city}{args[0]}", "t", arguments_read_by(Task().run), ("HH",), {}) == "HHHH"
    assert template_complaint("exclusive", "{self}", "t", arguments_read_by(Task().run)) is not None
    assert template_complaint("exclusive", "{self}", "t", ReadArguments(Task.run, skip_first=True)) is not None


def test_a_function_that_another_wraps_is_asked():
    @functools.wraps(reroute)
    def wrapped(*args, **kwargs):
        pass

    assert template_complaint("exclusive", "{town}", "t", arguments_read_by(wrapped)) is not None


def test_what_cannot_be_asked_may_take_anything():
    class Slotted:
        __slots__ = ()

        def __call__(self, city):
            pass

    assert template_complaint("exclusive", "{any}{args[7]}", "t", arguments_read_by(type)) is None
    assert template_complaint("exclusive", "{town}", "t", arguments_read_by(Slotted())) is not None


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (
            "{town}",
            "exclusive \"{town}\": task proj.reroute has no argument 'town'; it takes: area, city, force, deep, ",
        ),
        ("{args[3]}", 'exclusive "{args[3]}": task proj.reroute has no positional argument 3; it takes: area, city'),
        (
            "x{area}{kwargs}",
            "exclusive \"x{area}{kwargs}\": task proj.reroute has no argument 'kwargs'; it takes: area",
        ),
    ],
)
def test_a_template_that_no_call_can_fill_is_known_before(template, words):
    assert template_complaint("exclusive", template, "proj.reroute", ReadArguments(reroute)).startswith(words)
    with pytest.raises(OptionError, match="^" + re.escape(words)):
        fill(template, reroute, "north", deep=1)


def test_a_task_without_arguments_says_so():
    words = "exclusive \"{x}\": task t has no argument 'x'; it takes none"
    assert template_complaint("exclusive", "{x}", "t", ReadArguments(lambda: None)) == words


@pytest.mark.parametrize(
    ("template", "args", "words"),
    [
        ("{deep}", ("north",), "was called without argument 'deep'; it takes: area, city, force, deep, depth"),
        ("{args[0]}", (), "was called without argument 'area'; it takes: area, city, force, deep, depth"),
    ],
)
def test_an_argument_that_a_call_lacks_is_named(template, args, words):
    with pytest.raises(OptionError, match=re.escape(f'exclusive "{template}": task proj.reroute {words}')):
        fill(template, reroute, *args)


def test_any_argument_may_be_given_to_a_task_that_takes_all():
    assert template_complaint("exclusive", "{city}{args[5]}", "t", ReadArguments(anything)) is None
    assert fill("{city}{args[0]}", anything, 1, city=2) == "21"
    with pytest.raises(OptionError, match=r"was called without argument 'city'; it takes: any other by name"):
        fill("{city}", anything, 1)


def test_without_the_task_a_call_says_what_is_named():
    def fill(template, *args, **kwargs):
        return fill_template("exclusive", template, "t", CallArguments(), args, kwargs)

    assert fill("{city}:{args[1]}:{task}", 1, 2, city=3) == "3:2:t"
    assert fill("{city}", city=None) is None
    for template, words in [
        ("{city}", "task t was called without keyword argument 'city'; it got: town"),
        ("{args[1]}", "task t was called without positional argument 1; it got 1"),
    ]:
        with pytest.raises(OptionError, match=re.escape(f'exclusive "{template}": {words}')):
            fill(template, 1, town=2)


@pytest.mark.parametrize(
    ("template", "got"),
    [
        *(("{}", "{}"), ("{0}", "{0}"), ("{a.b}", "{a.b}"), ("{a[b]}", "{a[b]}"), ("{args[-1]}", "{args[-1]}")),
        *(("{a!r}", "{a!r}"), ("{a:5}", "{a:5}"), ("{a b}", "{a b}"), ("{args}{args[x]}", "{args[x]}")),
    ],
)
def test_what_is_no_field_is_refused(template, got):
    accepted = "the text in braces must be {name} of an argument, {args[0]} or {task}"
    with pytest.raises(OptionError, match="^" + re.escape(f'rate "{template}": {accepted}; got: {got}')):
        parse_template("rate", template)


@pytest.mark.parametrize("template", ["{", "}", "{city", "city}", "{{}", "{a{b}}"])
def test_braces_that_do_not_match_are_refused(template):
    with pytest.raises(OptionError, match=re.escape(f'exclusive "{template}": the text in braces must be ')):
        parse_template("exclusive", template)


@given(st.text())
def test_a_text_with_its_braces_doubled_is_itself(text):
    template = text.replace("{", "{{").replace("}", "}}")
    assert "".join(parse_template("exclusive", template)) == text
    assert not any(isinstance(part, TemplateField) for part in parse_template("exclusive", template))
