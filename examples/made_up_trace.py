"""Writes a trace that nobody recorded, to try the lab with: ``python -m examples.made_up_trace FILE [JOBS]``."""

import sys
from pathlib import Path

from celery_affinity.lab.made_up import trace
from celery_affinity.lab.trace_file import write

if __name__ == "__main__":
    path, *jobs = sys.argv[1:]
    write(trace(int(jobs[0]) if jobs else 4_000), Path(path))
