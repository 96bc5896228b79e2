"""Writes a trace that nobody recorded, to try the lab with: ``python -m examples.made_up_trace FILE [JOBS]``."""

import sys
from pathlib import Path

from celery_affinity.lab.synthetic_traces import make_trace
from celery_affinity.lab.trace_file import write_trace

if __name__ == "__main__":
    path, *jobs = sys.argv[1:]
    write_trace(make_trace(int(jobs[0]) if jobs else 4_000), Path(path))
