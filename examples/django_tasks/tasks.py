import asyncio
import time

from django.tasks import task


@task(queue_name="pdf", takes_context=True)
def render(context, number):
    time.sleep(0.25)  # as if it were work
    return f"invoice {number} as a PDF, attempt {context.attempt}"


@task(queue_name="pdf", priority=-50)
async def archive(number, *, folder="invoices"):
    await asyncio.sleep(0.01)
    return [folder, number]


@task(queue_name="pdf")
def refuse(number):
    raise LookupError(f"no invoice {number}")
