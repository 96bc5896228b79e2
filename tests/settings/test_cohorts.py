"""The setting `affinity_cohorts`: what it accepts, and the cohort of a type."""

import pytest

from celery_affinity import Cohort, SettingError
from celery_affinity.settings import cohorts
from celery_affinity.settings.table import Settings


def test_a_type_belongs_to_the_cohort_whose_pattern_matches_it_and_else_to_default():
    settings = Settings(cohorts={"ml": Cohort(["gpu*", "train"]), "eu": {"types": ["eu.*"], "url": "redis://other"}})
    found = {type_: settings.cohort_of(type_) for type_ in ("gpu", "gpu.big", "train", "trains", "eu.pdf", "pdf")}
    assert found == {
        "gpu": "ml",
        "gpu.big": "ml",
        "train": "ml",
        "trains": "default",
        "eu.pdf": "eu",
        "pdf": "default",
    }
    assert settings.cohorts["eu"] == Cohort(["eu.*"], url="redis://other")
    assert Settings().cohort_of("gpu") == "default"


def test_a_type_that_two_cohorts_match_is_refused_with_both():
    settings = Settings(cohorts={"ml": Cohort(["gpu*"]), "eu": Cohort(["*.eu"])})
    assert settings.cohort_of("gpu.us") == "ml"
    with pytest.raises(SettingError, match=r"got: type 'gpu.eu' matches '.*' of cohort 'eu' and 'gpu.' of cohort 'ml'"):
        settings.cohort_of("gpu.eu")


def test_a_name_in_two_cohorts_is_refused_when_the_setting_is_read():
    with pytest.raises(SettingError, match="affinity_cohorts must have each type in one cohort, got: type 'gpu1'"):
        Settings(cohorts={"ml": Cohort(["gpu*"]), "eu": Cohort(["gpu1"])})


@pytest.mark.parametrize(
    "value", [["gpu*"], {"default": Cohort(["x"])}, {"": Cohort(["x"])}, {"a b": Cohort(["x"])}, {"{": Cohort(["x"])}]
)
def test_what_is_no_map_is_refused_with_what_is_accepted(value):
    with pytest.raises(SettingError, match=r"affinity_cohorts must be a mapping of names to cohorts, such as .*, got:"):
        Settings(cohorts=value)


@pytest.mark.parametrize("cohort", ["gpu*", {"type": ["x"]}, {"types": ["x"], "shards": 2}, {}, None])
def test_what_is_no_cohort_is_refused_with_what_is_accepted(cohort):
    with pytest.raises(SettingError, match=r"affinity_cohorts must be a mapping .* got:"):
        Settings(cohorts={"ml": cohort})


@pytest.mark.parametrize("types", ["gpu*", [], [""], [3], None])
def test_the_types_of_a_cohort_are_patterns(types):
    with pytest.raises(SettingError, match="types of a Cohort must be a list of patterns of types"):
        Cohort(types)


def test_a_url_of_a_cohort_is_not_shown_when_it_is_refused():
    with pytest.raises(SettingError, match="url of a Cohort must be a broker's URL") as raised:
        Cohort(["x"], url=":secret@other")
    assert "secret" not in str(raised.value)


def test_the_map_is_shown_without_servers_and_in_one_order():
    one = Settings(cohorts={"ml": Cohort(["gpu*", "a b"]), "eu": Cohort(["eu.*"], url="redis://:secret@other")})
    other = Settings(cohorts={"eu": Cohort(["eu.*"]), "ml": Cohort(["a b", "gpu*"])})
    assert cohorts.shown_cohorts(one.cohort_map) == cohorts.shown_cohorts(other.cohort_map) == "eu=eu.* ml=a%20b,gpu*"


@pytest.mark.parametrize("url", ["redis://:secret@other", "rediss://u:secret@one:1/0;rediss://u:secret@two"])
def test_no_text_shows_the_password_of_a_cohorts_server(url):
    assert "secret" not in repr({"eu": Cohort(["eu.*"], url=url)})
    for wrong in ({"default": Cohort(["x"], url=url)}, {"eu": {"type": ["x"], "url": url}}, {"": {"url": url}}):
        with pytest.raises(SettingError) as raised:
            Settings(cohorts=wrong)
        assert "secret" not in str(raised.value)
        assert "redis" in str(raised.value)


def test_a_cohort_is_shown_as_it_is_written():
    assert repr(Cohort(("gpu*", "x"))) == "Cohort(['gpu*', 'x'])"
    assert repr(Cohort(["x"], url="redis://u:p@other/1")) == "Cohort(['x'], url='redis://u:**@other/1')"
