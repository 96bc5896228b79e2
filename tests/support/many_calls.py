"""A task for many calls, and its waiting messages decoded like a worker's."""

from celery.worker.request import Request
from kombu.message import Message
from kombu.serialization import prepare_accept_content

from celery_affinity.publishing.message import decode_message
from celery_affinity.schema.keys import Keys


def task(app, **options):
    @app.task(name=f"task{len(app.tasks)}", shared=False, **{"affinity": "pdf", **options})
    def render(path, dpi=100):
        return path, dpi

    return render


def messages(app, type_="pdf", lane="queued.0"):
    """Return the waiting messages in order."""
    ids = app.redis.zrange(Keys().key("lane", type_, lane), 0, -1)
    return [decode_message(app.redis.get(Keys().key("message", job_id.decode()))) for job_id in ids]


def arguments(app, **where):
    return [request(app, message).args for message in messages(app, **where)]


def request(app, message):
    """Return the request that a worker creates from a message."""
    properties = message["properties"]
    with app.pool.acquire() as connection:
        channel = connection.default_channel
        kombu_message = Message(
            channel.decode_body(message["body"], properties["body_encoding"]),
            channel=channel,
            content_type=message["content-type"],
            content_encoding=message["content-encoding"],
            properties=properties,
            headers=message["headers"],
            delivery_tag=properties["delivery_tag"],
            delivery_info=properties["delivery_info"],
            accept=prepare_accept_content(["json", "pickle", "yaml", "msgpack"]),
        )
        assert not kombu_message.errors
        return Request(kombu_message, app=app, task=app.tasks[message["headers"]["task"]])
