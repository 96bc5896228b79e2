# The image of docker-compose.yml: the library, Flower, and the examples.
FROM python:3.13-slim

# Celery warns of root with good reason.
RUN useradd --create-home app
WORKDIR /home/app

COPY pyproject.toml README.md LICENSE ./
COPY celery_affinity celery_affinity
RUN pip install --no-cache-dir ".[demo,flower]"

COPY examples examples
USER app
ENV PYTHONUNBUFFERED=1
CMD ["celery", "--app", "examples.compose_app", "worker"]
