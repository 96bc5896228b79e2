"""The grammar of a job's rules: accepted texts, their meaning, and the id suffix."""

import pytest

from celery_affinity.schema.rules_codec import (
    MAX_RULES_LENGTH,
    StatedKey,
    StatedMerge,
    StatedRate,
    as_preemptible,
    decode_rules,
    encode_rule,
    is_valid,
    join_rules,
)

MERGE, HINT, RATE = "merge=m most=2 bytes=1", "near=h", "key=rate%3Ar rate=5/60"
LIMIT, ORDERED, TENANT = "key=k limit=3", "key=k limit=1 order=1", "key=tenant%3At quota=settings"
K, N, T = "k" * 255, "9" * 18, "9" * 15

SUFFIXES = {
    "": "",
    MERGE: "+",
    f"{MERGE} wait=1/2": "+",
    HINT: "~",
    RATE: "!",
    LIMIT: "!",
    ORDERED: "!",
    TENANT: "$",
    f"{TENANT} preemptible=1": "$",
    f"{RATE} {LIMIT}": "&",
    f"{ORDERED} {RATE}": "&",
    f"{LIMIT} {TENANT}": "&",
    f"{MERGE} {HINT}": "~+",
    f"{HINT} {TENANT}": "~$",
    f"{MERGE} wait=1/2 {HINT} {ORDERED} {RATE} {TENANT} preemptible=1": "~+&",
    f"merge={K} most={N} bytes={N} wait={T}/{T} near={K} key={K} limit={N}": "~+!",
    f"key=rate%3A{'k' * 248} rate={N}/{N}": "!",
}

INVALID = [
    *(f"merge=m most={most} bytes=1" for most in ("1", "0", "02", N + "9")),
    *("merge=m", "merge=m most=2", "merge= most=2 bytes=1", "merge=m most=2 bytes=0", f"{MERGE} wait=1"),
    *(f"{MERGE} wait={T}9/1", f"{MERGE} wait=1/{T}9", f"merge={K}k most=2 bytes=1", f"merge=m most=2 bytes={N}9"),
    *("near=", f"near={K}k", "near=a:b", "near=\u00e9", f"{HINT} {HINT}", f"{HINT} {MERGE}", f"{LIMIT} {HINT}"),
    *("key=rate%3Ar limit=1", "key=tenant%3At limit=1", "key=k rate=5/60", "key=k quota=settings", "key=k"),
    *("key=rate%3Ar limit=1 order=1", "key=tenant%3At limit=1 order=1", "key=k limit=2 order=1", "key=k limit=0"),
    *("key=rate%3Ar rate=5", "key=rate%3Ar rate=0/5", "key=rate%3Ar rate=5/0", f"key=rate%3Ar rate={N}9/1"),
    *(f"key=rate%3Ar rate=1/{N}9", f"key={K}k limit=1", f"key=k limit={N}9", f"{LIMIT} {LIMIT}", f"{RATE} {RATE}"),
    *(f"{LIMIT} {ORDERED}", f"{TENANT} {RATE}", f"{TENANT} {TENANT}", f"{LIMIT} preemptible=1", "preemptible=1"),
    *("key=tenant%3At quota=other", f"{TENANT} preemptible=0", f"{LIMIT} {MERGE}", f"{MERGE} {MERGE}", "x", "x=1"),
    *(f" {LIMIT}", f"{LIMIT} ", f"{RATE}  {LIMIT}", f"{RATE}\n{LIMIT}", f"{LIMIT}\n", f"{RATE}{LIMIT}"),
]


def test_valid_rules_have_the_suffix_of_their_kinds():
    for text, suffix in SUFFIXES.items():
        assert is_valid(text), text
        assert decode_rules(text).suffix == suffix, text
        assert join_rules(*decode_rules(text).texts.values()) == text


def test_rules_that_break_the_grammar_are_invalid():
    assert [text for text in INVALID if is_valid(text)] == []
    assert not is_valid(None)


def test_decoded_rules_have_the_values_of_the_field():
    rules = decode_rules(f"{MERGE} wait=3/4 {HINT} {ORDERED} {RATE} {TENANT} preemptible=1")
    assert rules.merge == StatedMerge("m", 2, 1, 3, 4)
    assert rules.hint == "h"
    assert rules.keys == (
        StatedKey("k", 1, keeps_order=True),
        StatedKey("rate%3Ar", StatedRate(5, 60)),
        StatedKey("tenant%3At", None),
    )
    assert rules.is_preemptible
    assert [*rules.texts] == ["merge", "locality", "exclusive", "rate", "tenant"]
    assert rules.text_of_keys == f"{ORDERED} {RATE} {TENANT} preemptible=1"


def test_rules_of_a_job_hash_omit_default_limits():
    assert decode_rules(f"merge=m {LIMIT}") == decode_rules(f"merge=m most=1000 bytes=1000000 {LIMIT}")


def test_decoding_leaves_out_invalid_rules_of_a_damaged_job_hash():
    for damaged in ("x", "merge=m most=x bytes=1", "key=k limit=x", "key=k"):
        assert decode_rules(f"{damaged} {HINT}").hint == "h"
        assert decode_rules(damaged)[1:] == (None, "", (), False)


@pytest.mark.parametrize("before", ["", f"{LIMIT} "])
def test_only_a_job_with_a_tenant_can_be_preempted(before):
    preemptible = f"{before}{TENANT} preemptible=1"
    assert as_preemptible(before + TENANT, True) == as_preemptible(preemptible, True) == preemptible
    assert as_preemptible(preemptible, False) == before + TENANT
    assert as_preemptible(LIMIT, True) == LIMIT


def test_an_encoded_rule_is_the_text_of_its_form():
    assert encode_rule("rate", rate_key="rate%3Ar", tokens=5, period_us=60) == RATE
    assert encode_rule("ordered", key="k") == ORDERED


def test_only_fields_up_to_the_maximum_length_are_decoded():
    longest = (
        f"merge={K} most={N} bytes={N} wait={T}/{T} near={K} key=rate%3A{'k' * 248} rate={N}/{N} "
        f"key={K} limit={N} key=tenant%3A{'t' * 246} quota=settings preemptible=1"
    )
    assert is_valid(longest)
    assert MAX_RULES_LENGTH - 10 < len(longest) <= MAX_RULES_LENGTH
    assert len(decode_rules(longest).keys) == 3
    assert decode_rules(f"{LIMIT} " * 100) != decode_rules("")  # damaged, and short enough to be read
    assert decode_rules(f"{LIMIT} " * 100_000) is decode_rules(""), "neither read nor cached"
