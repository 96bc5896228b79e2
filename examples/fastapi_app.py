"""A FastAPI app whose invoices are rendered by workers for PDFs.

celery -A examples.fastapi_app:celery worker -Q pdf -c 1
uvicorn examples.fastapi_app:app
curl http://localhost:8000/invoices/7                a user waits for this one
curl --request POST http://localhost:8000/nightly    and nobody for these
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
celery.conf.broker_transport = "celery_affinity:Transport"  # the whole installation
celery.conf.broker_connection_retry_on_startup = True

app = FastAPI()


@celery.task(affinity=Affinity("pdf", priority=5))
def render(number):
    time.sleep(0.25)  # as if it were work
    return f"invoice {number} as a PDF"


@app.get("/invoices/{number}")
async def invoice(number: Annotated[int, Path(ge=0)]) -> PlainTextResponse:
    """A user looks at a white page until this returns: it goes before the whole batch. No thread waits."""
    return PlainTextResponse(await aresult(render.apply_async((number,), on_demand=True), timeout=30))


# The other views are functions with `def`, which FastAPI runs in threads, because they read several results.


@app.post("/nightly", status_code=202)
def nightly() -> dict[str, str]:
    """Render everybody's invoices; any time before the morning will do."""
    batch = group(render.s(number) for number in range(12)).apply_async()
    batch.save()
    return {"id": batch.id}


@app.get("/nightly/{batch}")
def progress(batch: str) -> dict[str, int]:
    results = GroupResult.restore(batch, app=celery)
    return {"done": results.completed_count(), "of": len(results)}
