"""Quotas of tenants have three forms: a mapping in app.conf, typed text, and the encoded text in Redis."""

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
def test_quotas_survive_a_round_trip(quotas):
    assert tenants.check_tenants(quotas) is None
    assert tenants.typed_tenants(tenants.shown_tenants(quotas)) == quotas
    text = tenants.encoded_tenants(quotas)
    for name, quota in quotas.items():
        key = f"tenant%3A{encode_part(name)}"
        maximum, minimum = tenants.maximum_of(key, text), tenants.minimum_of(key, text)
        assert name == "*" or Tenant(max=maximum, min=minimum, weight=tenants.weight_of(key, text)) == quota


def test_star_applies_to_tenants_without_an_entry():
    text = tenants.encoded_tenants({"*": Tenant(max=3), "acme": Tenant(), "a*": {"max": 1}})
    assert tenants.maximum_of("tenant%3Aother", text) == 3
    assert tenants.maximum_of("tenant%3A%2A", text) == 3
    assert tenants.maximum_of("tenant%3Aacme", text) is None
    assert tenants.maximum_of("tenant%3Aa%2A", text) == 1
    assert tenants.maximum_of("tenant%3Aab", text) == 3
    assert tenants.maximum_of("tenant%3Aab", "") is None


def test_invalid_tenants_are_refused(subtests):
    for value in [
        *(5, "acme", "acme=5", "acme=max:-1", {"acme": 5}, {"": Tenant(max=3)}, {5: Tenant()}, {"a": {"most": 3}}),
        *({"a": {"max": 3, "min": 4}}, "a=max:3,min:4", "a=max:3,min:-1", "a=max:3,weight:2,min:1", {"x" * 250: {}}),
        *({"": Tenant(min=1)}, '""=max:3', "=max:none"),
    ]:
        accepted = r"affinity_tenants must be quotas by tenant such as .*, got: "
        with subtests.test(repr(value)), pytest.raises(SettingError, match=accepted):
            Settings(tenants=value)


def test_invalid_quota_is_refused(subtests):
    whole = "a whole number, 0 or more, up to 1,000,000,000, got: "
    for quota, message in [
        *(({"max": value}, f"max of a tenant must be None, or {whole}") for value in (-1, 2.5, True, "3", 10**18)),
        *(({"min": value}, f"min of a tenant must be {whole}") for value in (-1, 2.5, True, "3", None, 10**18)),
        ({"max": 3, "min": 4}, "min of a tenant must be a whole number up to its max, 3, got: 4"),
        ({"maxx": 3}, r"Tenant takes max, min, weight, got: 'maxx'; did you mean 'max'\?"),
    ]:
        with subtests.test(repr(quota)), pytest.raises(OptionError, match=message):
            Tenant(**quota)


@pytest.mark.parametrize("tenant", [5, "", ["acme"], "{"])
def test_invalid_tenant_template_is_refused(tenant):
    with pytest.raises(OptionError, match="tenant"):
        Affinity(tenant=tenant)


def test_tenant_key_is_not_an_exclusive_key():
    assert tenant_in(check_tenant("acme: 1")) == "acme: 1"
    assert tenant_in("key=acme limit=1") is None
    assert tenant_in(5) is None
    with pytest.raises(OptionError, match="key of exclusive must be one that does not begin with"):
        Affinity(exclusive="tenant:acme")


def test_overlong_tenant_name_is_refused_instead_of_hashed():
    """A hash could merge two tenants."""
    TenantKey("any").text("x" * 240)
    with pytest.raises(OptionError, match="tenant must be a name of at most 255 characters"):
        TenantKey("any").text("x" * 250)
