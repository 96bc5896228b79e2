"""The setting `affinity_cohorts`: accepted values, and the cohort of a type."""

import pytest

from celery_affinity import Cohort, SettingError
from celery_affinity.settings import cohorts
from celery_affinity.settings.table import Settings


def test_type_belongs_to_the_matching_cohort_or_default():
    settings = Settings(cohorts={"ml": Cohort(["gpu*", "train"]), "eu": {"types": ["eu.*"], "url": "redis://other"}})
    cohort_by_type = dict.fromkeys(("gpu", "gpu.big", "train"), "ml") | {"eu.pdf": "eu"}
    cohort_by_type |= dict.fromkeys(("trains", "pdf"), "default")
    assert {type_: settings.cohort_of(type_) for type_ in cohort_by_type} == cohort_by_type
    assert settings.cohorts["eu"] == Cohort(["eu.*"], url="redis://other")
    assert Settings().cohort_of("gpu") == "default"


def test_type_matching_two_cohorts_is_refused():
    settings = Settings(cohorts={"ml": Cohort(["gpu*"]), "eu": Cohort(["*.eu"])})
    assert settings.cohort_of("gpu.us") == "ml"
    with pytest.raises(SettingError, match=r"got: type 'gpu.eu' matches '.*' of cohort 'eu' and 'gpu.' of cohort 'ml'"):
        settings.cohort_of("gpu.eu")
    with pytest.raises(SettingError, match="affinity_cohorts must have each type in one cohort, got: type 'gpu1'"):
        Settings(cohorts={"ml": Cohort(["gpu*"]), "eu": Cohort(["gpu1"])})


def test_invalid_cohorts_are_refused(subtests):
    for value in ["gpu*"], *({name: Cohort(["x"])} for name in ("default", "", "a b", "{")):
        accepted = r"affinity_cohorts must be a mapping of names to cohorts, such as .*, got:"
        with subtests.test(repr(value)), pytest.raises(SettingError, match=accepted):
            Settings(cohorts=value)
    for cohort in "gpu*", {"type": ["x"]}, {"types": ["x"], "shards": 2}, {}, None:
        accepted = r"affinity_cohorts must be a mapping .* got:"
        with subtests.test(repr(cohort)), pytest.raises(SettingError, match=accepted):
            Settings(cohorts={"ml": cohort})
    for types in "gpu*", [], [""], [3], None:
        accepted = "types of a Cohort must be a list of patterns of types"
        with subtests.test(repr(types)), pytest.raises(SettingError, match=accepted):
            Cohort(types)


def test_refused_cohort_url_is_not_shown():
    with pytest.raises(SettingError, match="url of a Cohort must be a broker's URL") as raised:
        Cohort(["x"], url=":secret@other")
    assert "secret" not in str(raised.value)


def test_cohort_map_is_shown_sorted_and_without_urls():
    one = Settings(cohorts={"ml": Cohort(["gpu*", "a b"]), "eu": Cohort(["eu.*"], url="redis://:secret@other")})
    other = Settings(cohorts={"eu": Cohort(["eu.*"]), "ml": Cohort(["a b", "gpu*"])})
    assert cohorts.shown_cohorts(one.cohort_map) == cohorts.shown_cohorts(other.cohort_map) == "eu=eu.* ml=a%20b,gpu*"


@pytest.mark.parametrize("url", ["redis://:secret@other", "rediss://u:secret@one:1/0;rediss://u:secret@two"])
def test_no_text_shows_the_password_of_a_cohort_url(url):
    assert "secret" not in repr({"eu": Cohort(["eu.*"], url=url)})
    for wrong in ({"default": Cohort(["x"], url=url)}, {"eu": {"type": ["x"], "url": url}}, {"": {"url": url}}):
        with pytest.raises(SettingError) as raised:
            Settings(cohorts=wrong)
        assert "secret" not in str(raised.value)
        assert "redis" in str(raised.value)


def test_cohort_repr_is_its_constructor_call():
    assert repr(Cohort(("gpu*", "x"))) == "Cohort(['gpu*', 'x'])"
    assert repr(Cohort(["x"], url="redis://u:p@other/1")) == "Cohort(['x'], url='redis://u:**@other/1')"
