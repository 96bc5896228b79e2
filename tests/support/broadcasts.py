"""Remote control broadcasts in kombu's format."""

import base64
import json
import uuid

#: Redis channel to which kombu publishes broadcasts.
CHANNEL = "/0.celery.pidbox"

#: For commands whose replies are discarded, unless a list is bound to this routing key.
TO_NOBODY = {"reply_to": {"exchange": "reply.celery.pidbox", "routing_key": "nobody"}, "ticket": "a ticket"}


def message(content, **changes):
    """Return a broadcast in kombu's format, with *changes* to its fields."""
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
