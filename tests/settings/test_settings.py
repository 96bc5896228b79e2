"""Settings accept valid values and refuse others with an error for users."""

import re

import pytest
from celery import Celery

from celery_affinity import SettingError
from celery_affinity.settings.loader import load_settings
from celery_affinity.settings.table import Settings


def settings_of(**conf):
    app = Celery("app", set_as_current=False)
    app.conf.update(conf)
    return load_settings(app.conf, app.conf.keys())


def test_settings_come_from_the_app():
    assert settings_of() == Settings()
    assert settings_of(affinity_worker_timeout=60).worker_timeout == 60


def test_celery_namespace_is_honoured():
    class Django:
        CELERY_AFFINITY_WORKER_TIMEOUT = 60
        CELERY_BROKER_TRANSPORT = "celery_affinity:Transport"

    app = Celery("app", set_as_current=False)
    app.config_from_object(Django, namespace="CELERY")
    assert load_settings(app.conf, app.conf.keys()).worker_timeout == 60


SECONDS = "a number of seconds above 0, up to 315,360,000"
QUEUES = "a list of queue name patterns, such as ['pdf', 'reports.*']"


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("affinity_worker_timeout", 0, SECONDS),
        ("affinity_worker_timeout", "30", SECONDS),
        ("affinity_worker_timeout", True, SECONDS),
        ("affinity_priority_order", "desc", "'higher-first' or 'lower-first'"),
        ("affinity_guard", "no", "True or False"),
        ("affinity_age_weight", 0, "a number of points a second, above 0, up to 1,000,000"),
        ("affinity_rarity_weight", -1, "a number of points, 0 or more, up to 1,000,000"),
        ("affinity_max_deliveries", 1.5, "a whole number above 0, up to 1,000,000,000"),
        ("affinity_queues", "pdf", QUEUES),
        ("affinity_queues", [""], QUEUES),
    ],
)
def test_invalid_setting_is_named_with_accepted_and_given_values(name, value, accepted):
    with pytest.raises(SettingError, match=re.escape(f"{name} must be {accepted}, got: {value!r}")):
        settings_of(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("affinity_task_types", {"a": 1}, "affinity_task_types must be a mapping of task name patterns to types"),
        ("affinity_worker_timeout", 6, "affinity_heartbeat_interval must be at most half of affinity_worker_timeout"),
        ("affinity_hartbeat_interval", 5, "unknown setting 'affinity_hartbeat_interval'; did you mean 'affinity_heart"),
    ],
)
def test_invalid_setting_is_explained(name, value, message):
    with pytest.raises(SettingError, match=re.escape(message)):
        settings_of(**{name: value})


def test_long_refused_value_shows_no_part_of_a_password():
    shown = []
    for length in range(900, 1_010):
        cohort = {"types": ["x" * length], "url": "redis://user:hunter2hunter2@other/0", "size": 1}
        for name, value in {"cohorts": {"eu": cohort}, "queues": cohort}.items():
            with pytest.raises(SettingError) as refused:
                Settings(**{name: value})
            shown += [(name, length)] if "hunt" in str(refused.value) else []
    assert not shown
