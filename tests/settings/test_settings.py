"""Settings: the accepted values, and the refusals that a user reads for others."""

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


def test_a_celery_namespace_is_honoured():
    class Django:
        CELERY_AFFINITY_WORKER_TIMEOUT = 60
        CELERY_BROKER_TRANSPORT = "celery_affinity:Transport"

    app = Celery("app", set_as_current=False)
    app.config_from_object(Django, namespace="CELERY")
    assert load_settings(app.conf, app.conf.keys()).worker_timeout == 60


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        (
            {"affinity_worker_timeout": 0},
            "affinity_worker_timeout must be a number of seconds above 0, up to 315,360,000, got: 0",
        ),
        (
            {"affinity_worker_timeout": "30"},
            "affinity_worker_timeout must be a number of seconds above 0, up to 315,360,000, got: '30'",
        ),
        (
            {"affinity_worker_timeout": True},
            "affinity_worker_timeout must be a number of seconds above 0, up to 315,360,000, got: True",
        ),
        (
            {"affinity_priority_order": "desc"},
            "affinity_priority_order must be 'higher-first' or 'lower-first', got: 'desc'",
        ),
        ({"affinity_guard": "no"}, "affinity_guard must be True or False, got: 'no'"),
        (
            {"affinity_age_weight": 0},
            "affinity_age_weight must be a number of points a second, above 0, up to 1,000,000, got: 0",
        ),
        (
            {"affinity_rarity_weight": -1},
            "affinity_rarity_weight must be a number of points, 0 or more, up to 1,000,000, got: -1",
        ),
        (
            {"affinity_max_deliveries": 1.5},
            "affinity_max_deliveries must be a whole number above 0, up to 1,000,000,000, got: 1.5",
        ),
        ({"affinity_task_types": {"a": 1}}, "affinity_task_types must be a mapping of task name patterns to types"),
        (
            {"affinity_queues": "pdf"},
            "affinity_queues must be a list of queue name patterns, such as ['pdf', 'reports.*'], got: 'pdf'",
        ),
        (
            {"affinity_queues": [""]},
            "affinity_queues must be a list of queue name patterns, such as ['pdf', 'reports.*'], got: ['']",
        ),
        ({"affinity_worker_timeout": 6}, "affinity_heartbeat_interval must be at most half of affinity_worker_timeout"),
        (
            {"affinity_hartbeat_interval": 5},
            "unknown setting 'affinity_hartbeat_interval'; did you mean 'affinity_heartbeat_interval'?",
        ),
    ],
)
def test_a_bad_setting_is_named_with_what_it_accepts_and_what_came(conf, message):
    with pytest.raises(SettingError, match=re.escape(message)):
        settings_of(**conf)


def test_a_long_refused_value_shows_no_part_of_a_password():
    shown = []
    for length in range(900, 1_010):
        cohort = {"types": ["x" * length], "url": "redis://user:hunter2hunter2@other/0", "size": 1}
        for name, value in {"cohorts": {"eu": cohort}, "queues": cohort}.items():
            with pytest.raises(SettingError) as refused:
                Settings(**{name: value})
            shown += [(name, length)] if "hunt" in str(refused.value) else []
    assert not shown
