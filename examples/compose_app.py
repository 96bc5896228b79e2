"""The app of docker-compose.yml: three tasks that need different workers.

docker compose up --build --detach
docker compose run --rm versatile python -m examples.compose_app
"""

import os

from celery import Celery, chain

url = os.environ.get("REDIS_URL", "redis://localhost")
app = Celery("examples.compose_app", broker=url, backend=url)
app.conf.broker_transport = "celery_affinity:Transport"
app.conf.broker_connection_retry_on_startup = True
app.conf.result_expires = 3600


@app.task(affinity="pdf")
def extract(name: str) -> str:
    return f"the text of {name}"


@app.task(affinity="excel")
def read(name: str) -> str:
    return f"the figures of {name}"


@app.task(affinity="index")
def index(text: str) -> str:
    return f"indexed {text}"


if __name__ == "__main__":
    for signature in (extract.s("report.pdf"), read.s("sales.xlsx")):
        print(chain(signature, index.s()).delay().get(timeout=30))
