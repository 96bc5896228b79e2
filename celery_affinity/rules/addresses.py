"""What a pause or a limit is about, as settings, arrows and people name it: ``type:T``, ``key:K``, ``*`` for all types.

Names of types and keys are encoded where Redis has them (`encoding.encode`).
"""

from typing import Literal

Kind = Literal["type", "key", "all"]

#: All types.
ALL = "*"

#: What goes before the name of a type, and of a key.
OF_TYPE, OF_KEY = "type:", "key:"


def type_address(type_: str) -> str:
    return OF_TYPE + type_


def key_address(key: str) -> str:
    return OF_KEY + key


def parts_of(address: str) -> tuple[Kind, str]:
    """Return the kind and the name in *address*; what is no address is that of a type."""
    if address == ALL:
        return "all", ""
    if address.startswith(OF_KEY):
        return "key", address.removeprefix(OF_KEY)
    return "type", address.removeprefix(OF_TYPE)
