"""``python -m tests.whole.chaos.over_http.program``: the program of the shell worker, writing the ledger."""

import json
import os
import sys
import time
from pathlib import Path

from ..ledger import Ledger


def main() -> None:
    job = json.load(sys.stdin)
    if job["task"].endswith(".total"):
        numbers, token = job["args"]
        result, seconds = sum(numbers), 0.0
    else:
        token, result, seconds = job["args"]
    ledger, run = Ledger(Path(os.environ["LEDGER"])), f"{os.getpid()}.1"
    ledger.note("start", token, run=run, worker=os.environ["WORKER"], by="shell", deliveries=job["deliveries"])
    time.sleep(seconds)
    ledger.note("end", token, run=run)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
