from django.http import JsonResponse
from django.tasks import TaskResultStatus, default_task_backend
from django.tasks.exceptions import TaskResultDoesNotExist
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from .tasks import render


@csrf_exempt  # curl has no cookies
@require_POST
def invoice(request, number):
    return JsonResponse({"id": render.using(priority=50).enqueue(number).id}, status=202)


async def result(request, result_id):
    try:
        run = await default_task_backend.aget_result(result_id)
    except TaskResultDoesNotExist:
        return JsonResponse({"error": "unknown, or expired"}, status=404)
    value = run.return_value if run.status == TaskResultStatus.SUCCESSFUL else None
    return JsonResponse({"status": run.status, "value": value})


urlpatterns = [
    path("invoices/<int:number>", invoice),
    path("results/<result_id>", result),
]
