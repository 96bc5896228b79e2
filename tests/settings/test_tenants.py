"""Quotas of tenants: as an app.conf has them, as somebody types them, and as Redis has them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_affinity import Affinity, OptionError, SettingError, Tenant
from celery_affinity.options.keys import TenantKey, check_tenant, tenant_in
from celery_affinity.schema.values import encode_part
from celery_affinity.settings import tenants
from celery_affinity.settings.table import Settings

QUOTAS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=9),
    st.builds(
        lambda most, least, weight: Tenant(max=most, min=least if most is None else min(least, most), weight=weight),
        st.none() | st.integers(0, 10**9),
        st.integers(0, 10**9),
        st.integers(1, 999_999),
    ),
    max_size=4,
)


@given(QUOTAS)
def test_quotas_come_back_as_they_went(quotas):
    assert tenants.check_tenants(quotas) is None
    assert tenants.typed_tenants(tenants.shown_tenants(quotas)) == quotas
    text = tenants.encoded_tenants(quotas)
    for name, quota in quotas.items():
        key = f"tenant%3A{encode_part(name)}"
        found = Tenant(
            max=tenants.maximum_of(key, text), min=tenants.minimum_of(key, text), weight=tenants.weight_of(key, text)
        )
        assert name == "*" or found == quota


def test_the_star_is_each_tenant_that_is_not_named_and_no_name():
    text = tenants.encoded_tenants({"*": Tenant(max=3), "acme": Tenant(), "a*": {"max": 1}})
    assert tenants.maximum_of("tenant%3Aother", text) == 3
    assert tenants.maximum_of("tenant%3A%2A", text) == 3
    assert tenants.maximum_of("tenant%3Aacme", text) is None
    assert tenants.maximum_of("tenant%3Aa%2A", text) == 1
    assert tenants.maximum_of("tenant%3Aab", text) == 3
    assert tenants.maximum_of("tenant%3Aab", "") is None


@pytest.mark.parametrize(
    "bad",
    [
        5,
        "acme",
        "acme=5",
        "acme=max:-1",
        {"acme": 5},
        {"": Tenant()},
        {5: Tenant()},
        {"a": {"most": 3}},
        {"a": {"max": 3, "min": 4}},
        "a=max:3,min:4",
        "a=max:3,min:-1",
        "a=max:3,weight:2,min:1",
        {"x" * 250: {}},
    ],
)
def test_what_is_no_setting_is_refused_with_what_is_accepted(bad):
    with pytest.raises(SettingError, match=r"affinity_tenants must be quotas by tenant such as .*, got: "):
        Settings(tenants=bad)


@pytest.mark.parametrize("most", [-1, 2.5, True, "3", 10**18])
def test_a_maximum_is_a_whole_number(most):
    with pytest.raises(
        OptionError, match="max of a tenant must be None, or a whole number, 0 or more, up to 1,000,000,000, got: "
    ):
        Tenant(max=most)


@pytest.mark.parametrize("least", [-1, 2.5, True, "3", None, 10**18])
def test_a_minimum_is_a_whole_number(least):
    with pytest.raises(
        OptionError, match="min of a tenant must be a whole number, 0 or more, up to 1,000,000,000, got: "
    ):
        Tenant(min=least)


def test_a_minimum_above_the_maximum_is_refused():
    with pytest.raises(OptionError, match="min of a tenant must be a whole number up to its max, 3, got: 4"):
        Tenant(max=3, min=4)


def test_a_misspelt_field_of_a_quota_is_refused():
    with pytest.raises(OptionError, match=r"Tenant takes max, min, weight, got: 'maxx'; did you mean 'max'\?"):
        Tenant(maxx=3)


@pytest.mark.parametrize("bad", [5, "", ["acme"], "{"])
def test_what_names_no_tenant_is_refused(bad):
    with pytest.raises(OptionError, match="tenant"):
        Affinity(tenant=bad)


def test_a_tenants_key_is_no_exclusive_key():
    assert tenant_in(check_tenant("acme: 1")) == "acme: 1"
    assert tenant_in("key=acme limit=1") is None
    assert tenant_in(5) is None
    with pytest.raises(OptionError, match="key of exclusive must be one that does not begin with"):
        Affinity(exclusive="tenant:acme")


def test_a_name_that_is_too_long_is_refused_and_not_hashed():
    """Two tenants must never be one."""
    TenantKey("any").text("x" * 240)
    with pytest.raises(OptionError, match="tenant must be a name of at most 255 characters"):
        TenantKey("any").text("x" * 250)
