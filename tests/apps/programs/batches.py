"""Tasks of celery-batches: three calls fill a batch, and fewer are run after the interval."""

from celery_batches import Batches

from . import make_app, runs, server

app = make_app("batches", worker_prefetch_multiplier=10)


@app.task(base=Batches, flush_every=3, flush_interval=2)
def total(requests):
    numbers = sorted(request.args[0] for request in requests)
    server.rpush("runs", f'["total", {numbers}]')
    for request in requests:
        queue = request.delivery_info["routing_key"]
        app.backend.mark_as_done(request.id, [request.args[0], sum(numbers), queue], request=request)


def results(*numbers):
    calls = [total.apply_async((number,), queue="pdf") for number in numbers]
    return [call.get(timeout=30) for call in calls]


def scenario():
    return {
        "full": results(1, 2, 3),
        "after the interval": results(4, 5),
        "two": results(6, 7, 8, 9, 10, 11),
        "runs": runs(),
    }
