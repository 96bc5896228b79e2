"""The options of `lab whatif` are parsed into changes, and invalid values are explained."""

import pytest

from celery_affinity.errors import OptionError
from celery_affinity.lab.changes import read_changes

from ..support.lab_scenarios import job, scenario, worker

SCENARIO = scenario(worker("w1@h"), job(0), job(1, type_="xls"), settings={"limits": "crawl%3A*=8"})


def settings(*words):
    return read_changes(SCENARIO, settings=words).settings


def test_settings_are_parsed_into_their_redis_format():
    assert settings("age_weight=32") == {"age_weight": "32"}
    assert settings("affinity_on_demand_age_cap=1.5") == {"on_demand_age_cap_us": "1500000"}
    assert settings("rarity=free") == {"rarity": "free"}
    assert settings("reserve=pdf:queued=2") == {"reserve": "pdf:queued=2"}


def test_single_limit_is_added_to_the_current_limits():
    assert settings("limits.type:pdf=5") == {"limits": "type%3Apdf=5 crawl%3A*=8"}
    several = settings("limits.type:pdf=5", "limits.type:xls=1", "limits.crawl:*=none")
    assert several == {"limits": "type%3Apdf=5 type%3Axls=1"}
    assert settings("affinity_limits.rate:m=9/m") == {"limits": "rate%3Am=9/60000000 crawl%3A*=8"}
    assert settings("limits=type:pdf=5") == {"limits": "type%3Apdf=5"}


def test_single_quota_is_set():
    assert settings("tenants.acme=max:3") == {"tenants": "acme=max:3"}


def test_workers_rates_and_priorities_are_parsed():
    options = {"add": ["[pdf, xls]:2"], "remove": ["w1@h"], "rates": ["pdf=1.5"], "priorities": ["xls=8"]}
    changes = read_changes(SCENARIO, **options, seed=7)
    assert changes.add == [(("pdf", "xls"), 2)]
    assert (changes.remove, changes.rates, changes.priorities, changes.seed) == (["w1@h"], {"pdf": 1.5}, {"xls": 8}, 7)


def test_invalid_option_of_whatif_is_explained(subtests):
    for option, word, complaint in [
        ("settings", "age", "--set must be NAME=VALUE, such as age_weight=32 or limits.type:pdf=5, got: 'age'"),
        (
            "settings",
            "agee_weight=3",
            "--set: unknown setting 'affinity_agee_weight'; did you mean 'affinity_age_weight'?",
        ),
        (
            "settings",
            "age_weight=0",
            "--set: affinity_age_weight must be a number of points a second, above 0, up to 1,000,000, got: '0'",
        ),
        ("settings", "guard=1", "--set: affinity_guard can only be set in app.conf; changeable at run time: "),
        (
            "settings",
            "limits.type:pdf=many",
            "--set limits.NAME=VALUE must be as in limits.type:pdf=5, got: 'limits.type:pdf=many'",
        ),
        (
            "settings",
            "tenants.acme=3",
            "--set tenants.NAME=VALUE must be as in tenants.acme=max:3, got: 'tenants.acme=3'",
        ),
        (
            "settings",
            "priority_order=lower-first",
            "--set: a trace has its priorities as numbers with 10 as the highest",
        ),
        ("add", "pdf:4", "--add must be types in brackets and a number of slots, such as '[pdf,xls]:2', got: 'pdf:4'"),
        ("add", "[pdf,]:4", "--add must be types in brackets and a number of slots"),
        ("remove", "w2@h", "--remove must be the name of a worker of the trace, got: 'w2@h'; did you mean 'w1@h'?"),
        ("remove", "x", "--remove must be the name of a worker of the trace, got: 'x'; there are: w1@h"),
        ("rates", "pdf=0", "--rate must be TYPE=NUMBER with a number above 0, 100 at most, got: 'pdf=0'"),
        ("rates", "pdf=nan", "--rate must be TYPE=NUMBER with a number above 0, 100 at most, got: 'pdf=nan'"),
        ("rates", "ocr=2", "--rate must be a type with jobs in the trace, got: 'ocr'; there are: pdf, xls"),
        ("priorities", "pdf=11", "--priority must be TYPE=NUMBER with a whole number from 0 to 10, got: 'pdf=11'"),
        ("priorities", "8", "--priority must be TYPE=NUMBER with a whole number from 0 to 10, got: '8'"),
    ]:
        with subtests.test(str((option, word, complaint))):
            with pytest.raises(OptionError) as caught:
                read_changes(SCENARIO, **{option: [word]})
            assert str(caught.value).startswith(complaint)
