"""Misspelt names of options and settings are recognised, and similar correct names are not."""

import re

import pytest
from amqp.basic_message import Message as AMQPMessage
from celery import Celery
from celery.app.defaults import NAMESPACES, flatten
from celery.app.task import Context, Task

from celery_affinity import SettingError
from celery_affinity.options.did_you_mean import closest_match
from celery_affinity.publishing.option_checks import KNOWN, MISSPELT
from celery_affinity.settings.loader import load_settings

from ..support.misspellings import MISTAKES, OWN


def test_only_misspelt_names_have_a_closest_match():
    assert {name: closest_match(name, MISSPELT) for name, _ in MISTAKES} == dict(MISTAKES)
    assert {name: closest_match(name, MISSPELT) for name in OWN} == dict.fromkeys(OWN)


def test_names_of_celery_and_kombu_have_no_closest_match():
    names = {
        *dir(Task),
        *dir(Context),
        *dir(Celery),
        *KNOWN,
        *(name for name, _ in AMQPMessage.PROPERTIES),
        *(word for key, _ in flatten(NAMESPACES) for word in (key, *key.split("_"))),
    }
    assert len(names) > 500
    assert {name: closest_match(name, MISSPELT) for name in names if closest_match(name, MISSPELT)} == {}


@pytest.mark.parametrize(
    ("key", "setting"),
    [
        ("affinty_queues", "affinity_queues"),
        ("afinity_worker_timeout", "affinity_worker_timeout"),
        ("affinity-queues", "affinity_queues"),
        ("affinityqueues", "affinity_queues"),
        ("affintiy_worker_timout", "affinity_worker_timeout"),
        ("CELERY_AFFINTY_QUEUES", "affinity_queues"),
    ],
)
def test_setting_with_a_misspelt_prefix_is_refused(key, setting):
    app = Celery("app", set_as_current=False)
    app.conf[key] = ["pdf"]
    with pytest.raises(SettingError, match=re.escape(f"unknown setting {key!r}; did you mean {setting!r}?")):
        load_settings(app.conf, app.conf.keys())


@pytest.mark.parametrize("key", ["infinity_queues", "affinities", "afinity_of_mine", "my_queues", "CELERY_QUEUES"])
def test_users_own_settings_are_accepted(key):
    app = Celery("app", set_as_current=False)
    app.conf[key] = ["pdf"]
    load_settings(app.conf, app.conf.keys())
