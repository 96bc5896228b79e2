"""Templates of keys are filled with the arguments that the task would receive."""

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
def test_template_is_filled_from_the_call(template, key):
    assert fill(template, reroute, "north", "HH", deep=5) == key


@given(st.data())
def test_template_values_equal_pythons_argument_binding(data):
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
def test_template_with_a_none_argument_gives_no_key(template):
    assert fill(template, reroute, "north", deep=1) is None


def test_templates_skip_the_self_argument_of_methods():
    class Task:
        def run(self, city):
            pass

    assert arguments_read_by(Task().run) is arguments_read_by(Task().run)
    assert fill_template("exclusive", "{city}{args[0]}", "t", arguments_read_by(Task().run), ("HH",), {}) == "HHHH"
    assert template_complaint("exclusive", "{self}", "t", arguments_read_by(Task().run)) is not None
    assert template_complaint("exclusive", "{self}", "t", ReadArguments(Task.run, skip_first=True)) is not None


def test_complaint_uses_the_signature_of_wrapped_functions():
    @functools.wraps(reroute)
    def wrapped(*args, **kwargs):
        pass

    assert template_complaint("exclusive", "{town}", "t", arguments_read_by(wrapped)) is not None


def test_callable_without_a_signature_accepts_any_template():
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
def test_complaint_rejects_templates_no_call_can_fill(template, words):
    assert template_complaint("exclusive", template, "proj.reroute", ReadArguments(reroute)).startswith(words)
    with pytest.raises(OptionError, match="^" + re.escape(words)):
        fill(template, reroute, "north", deep=1)


def test_complaint_names_a_task_without_arguments():
    words = "exclusive \"{x}\": task t has no argument 'x'; it takes none"
    assert template_complaint("exclusive", "{x}", "t", ReadArguments(lambda: None)) == words


@pytest.mark.parametrize(
    ("template", "args", "words"),
    [
        ("{deep}", ("north",), "was called without argument 'deep'; it takes: area, city, force, deep, depth"),
        ("{args[0]}", (), "was called without argument 'area'; it takes: area, city, force, deep, depth"),
    ],
)
def test_error_names_the_missing_argument(template, args, words):
    with pytest.raises(OptionError, match=re.escape(f'exclusive "{template}": task proj.reroute {words}')):
        fill(template, reroute, *args)


def test_tasks_with_variadic_arguments_accept_any_template():
    assert template_complaint("exclusive", "{city}{args[5]}", "t", ReadArguments(anything)) is None
    assert fill("{city}{args[0]}", anything, 1, city=2) == "21"
    with pytest.raises(OptionError, match=r"was called without argument 'city'; it takes: any other by name"):
        fill("{city}", anything, 1)


def test_call_arguments_fill_templates_without_the_task():
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
def test_invalid_fields_are_rejected(template, got):
    accepted = "the text in braces must be {name} of an argument, {args[0]} or {task}"
    with pytest.raises(OptionError, match="^" + re.escape(f'rate "{template}": {accepted}; got: {got}')):
        parse_template("rate", template)


@pytest.mark.parametrize("template", ["{", "}", "{city", "city}", "{{}", "{a{b}}"])
def test_unmatched_braces_are_rejected(template):
    with pytest.raises(OptionError, match=re.escape(f'exclusive "{template}": the text in braces must be ')):
        parse_template("exclusive", template)


@given(st.text())
def test_doubled_braces_are_literal_text(text):
    template = text.replace("{", "{{").replace("}", "}}")
    assert "".join(parse_template("exclusive", template)) == text
    assert not any(isinstance(part, TemplateField) for part in parse_template("exclusive", template))
