"""One arrow a file, as ``server/lua/arrows``: what is shared by several stands in the other rooms.

`reference` has them in the order in which a job takes them.
"""

from . import (
    ack,
    announce,
    beat,
    claim,
    configure,
    drop,
    ingest,
    join,
    leave,
    pause,
    publish,
    purge,
    recover,
    release,
    replay,
    requeue,
    resume,
    revoke,
    sync,
    tick,
    told,
)

__all__ = [
    "ack",
    "announce",
    "beat",
    "claim",
    "configure",
    "drop",
    "ingest",
    "join",
    "leave",
    "pause",
    "publish",
    "purge",
    "recover",
    "release",
    "replay",
    "requeue",
    "resume",
    "revoke",
    "sync",
    "tick",
    "told",
]
