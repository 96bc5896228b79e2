"""What a trace says of keys and tenants: a hash of each, and the limits that applied.

The hashes of one recording are made with a random salt that nobody keeps: equal keys have equal hashes within a trace,
and nobody can find out by trying names whether one of them is in it.
"""

import hashlib
import secrets
from functools import lru_cache
from typing import NamedTuple

from ..rules.addresses import OF_TYPE
from ..rules.encoding import encode
from ..rules.keyed import key_limits
from ..rules.keyed.key_rules import as_said
from ..rules.protocol import RATE_PREFIX, TENANT_PREFIX
from ..rules.rule_texts import StatedRate, keys_in, merge_in, parts_of
from ..rules.tenants import OTHERS

#: Bytes of a hash: among a million keys, two have the same one in 1 of 40 million traces.
_BYTES = 8

#: Beginning of the words of settings that name a type, encoded, and not a key.
_OF_TYPE = encode(OF_TYPE)


class Keyed(NamedTuple):
    """What a trace has of the rules of a job, under the names of `TracedJob`."""

    exclusive: str | None = None
    exclusive_limit: str | None = None
    rate: str | None = None
    rate_limit: str | None = None
    merge: str | None = None
    tenant: str | None = None


NO_RULES = Keyed()


class Hashes:
    """Hashes of one recording. *limits*: the setting in force, as Redis has it, which overrides what tasks say."""

    def __init__(self, limits: str = "") -> None:
        self._salt = secrets.token_bytes(16)
        self._limits = key_limits.in_force(limits)
        self._keyed = lru_cache(maxsize=100_000)(self._worked_out)

    def of(self, kind: str, name: str) -> str:
        """Return the hash of a *name* of one *kind*: the same name as a key and as a tenant has two."""
        said = f"{kind} {name}".encode(errors="surrogateescape")
        return hashlib.blake2b(said, digest_size=_BYTES, key=self._salt).hexdigest()

    def keyed(self, rules: str, task: str) -> Keyed:
        """Return what a trace has of a job with these *rules*, as its row has them. *task*: its name."""
        return self._keyed(rules, task if rules.startswith("merge=") else "")

    def _worked_out(self, rules: str, task: str) -> Keyed:
        found: dict[str, str] = {}
        for each in keys_in(rules):
            if each.stated is None:
                found["tenant"] = self.of("tenant", each.key.removeprefix(TENANT_PREFIX))
            elif isinstance(each.stated, StatedRate):
                rate = key_limits.rate_set(each.key, self._limits) or each.stated
                found["rate"] = self.of("rate", each.key.removeprefix(RATE_PREFIX))
                found["rate_limit"] = as_said(f"{rate.tokens}/{rate.period_us}")
            else:
                limit = key_limits.limit_set(each.key, self._limits)
                found["exclusive"] = self.of("exclusive", each.key)
                found["exclusive_limit"] = str(each.stated if limit is None else limit)
        merge = merge_in(rules)
        if merge is not None:  # only calls of one task with the same keys merge
            found["merge"] = self.of("merge", f"{merge.key} {parts_of(rules)[1]} {task}")
        return Keyed(**found)

    def settings(self, found: dict[str, str]) -> dict[str, str]:
        """Return settings, by their name in Redis, without names of keys and tenants.

        Limits of types stay; those of keys are in each job. Tenants have the hashes that their jobs have.
        """
        limits = " ".join(word for word in found.get("limits", "").split() if word.startswith((OF_TYPE, _OF_TYPE)))
        return {**found, "limits": limits, "tenants": " ".join(map(self._quota, found.get("tenants", "").split()))}

    def _quota(self, word: str) -> str:
        name, _, quota = word.rpartition("=")
        return word if name == OTHERS else f"{self.of('tenant', name)}={quota}"
