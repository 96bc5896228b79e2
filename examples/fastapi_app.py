"""A FastAPI app whose invoices are rendered by Celery workers of type `pdf`.

celery -A examples.fastapi_app:celery worker -Q pdf -c 1
uvicorn examples.fastapi_app:app
curl http://localhost:8000/invoices/7                a user waits for this invoice
curl --request POST http://localhost:8000/nightly    a batch of invoices, rendered later
"""

import os
import time
from typing import Annotated

from celery import Celery, group
from celery.result import GroupResult
from fastapi import FastAPI, Path
from fastapi.responses import PlainTextResponse

from celery_affinity import Affinity, aresult

url = os.environ.get("REDIS_URL", "redis://localhost")
celery = Celery("examples.fastapi_app", broker=url, backend=url)
celery.conf.broker_transport = "celery_affinity:Transport"  # this line enables celery_affinity
celery.conf.broker_connection_retry_on_startup = True

app = FastAPI()


@celery.task(affinity=Affinity("pdf", priority=5))
def render(number):
    time.sleep(0.25)  # as if it were work
    return f"invoice {number} as a PDF"


@app.get("/invoices/{number}")
async def invoice(number: Annotated[int, Path(ge=0)]) -> PlainTextResponse:
    """Render one invoice. The user waits for the response, so `on_demand` starts it before the whole batch.

    `aresult` waits in the event loop, not in a thread.
    """
    return PlainTextResponse(await aresult(render.apply_async((number,), on_demand=True), timeout=30))


# The other views are plain functions, which FastAPI runs in threads: they block while they read several results.


@app.post("/nightly", status_code=202)
def nightly() -> dict[str, str]:
    """Render all invoices as queued jobs, which start when no on-demand job waits."""
    batch = group(render.s(number) for number in range(12)).apply_async()
    batch.save()
    return {"id": batch.id}


@app.get("/nightly/{batch}")
def progress(batch: str) -> dict[str, int]:
    results = GroupResult.restore(batch, app=celery)
    return {"done": results.completed_count(), "of": len(results)}
