from celery import group
from celery.result import GroupResult
from django.http import HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from .tasks import render


def invoice(request, number):
    """Render one invoice. The user waits for the response, so `on_demand` starts it before the whole batch."""
    return HttpResponse(render.apply_async((number,), on_demand=True).get(timeout=30))


@csrf_exempt  # cron has no cookies
@require_POST
def nightly(request):
    """Render all invoices as queued jobs, which start when no on-demand job waits."""
    batch = group(render.s(number) for number in range(12)).apply_async()
    batch.save()
    return JsonResponse({"id": batch.id}, status=202)


def progress(request, batch):
    results = GroupResult.restore(batch)
    return JsonResponse({"done": results.completed_count(), "of": len(results)})


urlpatterns = [
    path("invoices/<int:number>", invoice),
    path("nightly", nightly),
    path("nightly/<batch>", progress),
]
