"""The page of the Python interface: all public names, which Sphinx fills with their docstrings."""

import inspect
from importlib import import_module

import celery_affinity

from .markdown import MADE, prose, table

BEFORE = """# Python

The public names are those that `celery_affinity` itself has. Its submodules may change.

"""


#: What public functions return, or take, beside public names.
RETURNED = (
    "admin.jobs.Change",
    "admin.actions.MoveTarget",
    "reports.job_lists.JobsPage",
    "reports.explain.Waiting",
    "reports.explain.ScorePoints",
    "reports.explain.SlotsOfTypes",
    "reports.explain.Blocker",
    "reports.key_usage.KeyWait",
    "reports.keys.KeyName",
    "reports.keys.Holder",
    "reports.keys.KeyStarts",
    "reports.queue_order.ClaimGroup",
)


def page() -> str:
    public = {name: getattr(celery_affinity, name) for name in celery_affinity.__all__}
    errors = {name: thing for name, thing in public.items() if _is_error(thing)}
    rows = [(f"`{name}`", _summary(thing)) for name, thing in public.items() if name not in errors]
    text = MADE + BEFORE + table(("name", "meaning"), rows)
    for name, thing in public.items():
        if name not in errors:
            text += f"\n## {name}\n{_directive(thing, name)}"
    text += "\n## Returned objects\n"
    text += "".join(_directive(_found(each), each) for each in RETURNED)
    text += "\n## Errors\n\n[Errors](errors.md) lists them in a table.\n"
    return text + "".join(_directive(thing, name) for name, thing in errors.items())


def _directive(thing: object, name: str) -> str:
    kind = "exception" if _is_error(thing) else "class" if inspect.isclass(thing) else "function"
    members = "\n   :members:" if kind == "class" and thing is not celery_affinity.Transport else ""
    return f"\n```{{eval-rst}}\n.. auto{kind}:: celery_affinity.{name}{members}\n```\n"


def _found(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"celery_affinity.{module}"), name)


def _is_error(thing: object) -> bool:
    return inspect.isclass(thing) and issubclass(thing, Exception)


def _summary(thing: object) -> str:
    return prose(inspect.getdoc(thing)).partition("\n\n")[0]
