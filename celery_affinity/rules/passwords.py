"""Texts that people see have no password of a URL."""

import re

#: In a URL: what stands before the password, the password, and the "@" after it.
_PASSWORD = re.compile(r"(://[^:/@\s'\"]*):[^\s'\"]*@")


def masked(text: str) -> str:
    """Return *text* with "**" for the password of each URL in it, also of those that semicolons separate."""
    return ";".join(_PASSWORD.sub(r"\1:**@", part) for part in text.split(";"))
