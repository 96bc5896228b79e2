"""Broadcasts of remote control, written as kombu writes them."""

import base64
import json
import uuid

#: Channel of Redis to which kombu publishes them.
CHANNEL = "/0.celery.pidbox"

#: For commands whose replies go to nobody, unless a list is bound under this routing key.
TO_NOBODY = {"reply_to": {"exchange": "reply.celery.pidbox", "routing_key": "nobody"}, "ticket": "a ticket"}


def message(content, **changes):
    """Return a broadcast as kombu writes one, with *changes* of its parts."""
    properties = {
        "delivery_info": {"exchange": "celery.pidbox", "routing_key": ""},
        "body_encoding": "base64",
        "delivery_tag": str(uuid.uuid4()),
    }
    whole = {
        "body": base64.b64encode(content if isinstance(content, bytes) else json.dumps(content).encode()).decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"clock": 1, "expires": 0},
        "properties": properties,
    }
    return json.dumps({**whole, **changes})


def command(method, arguments, **more):
    return message({"method": method, "arguments": arguments, "destination": None, **more})
