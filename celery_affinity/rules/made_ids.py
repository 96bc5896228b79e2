"""Ids that are made from a text, so that whoever does something again finds what was done before."""

import hashlib


def made_id(text: str) -> str:
    """Return an id made of *text*: 32 hexadecimal digits."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


def made_task_id(text: str) -> str:
    """Return a task id made of *text*: a UUID of version 8."""
    digits = made_id(text)
    return f"{digits[:8]}-{digits[8:12]}-8{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"
