"""An app for a long steady load: each task only records the wait of its job."""

import os
import select
import sys
import time

from . import new_app

TYPES = ("pdf", "excel", "index")

app = new_app("steady", task_ignore_result=True, task_acks_late=True)


@app.task(name="work")  # the publisher runs this module as __main__
def work(published_s):
    """Write the time of the start, and the wait since the publish."""
    now_s = time.time()
    descriptor = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, b"%.6f %.6f\n" % (now_s, now_s - published_s))
    finally:
        os.close(descriptor)


def publish():
    """Publish at the rate of the last line of standard input, until the input ends."""
    rate, number, due_s = 0.0, 0, time.monotonic()
    with app.connection_for_write() as connection, app.amqp.Producer(connection, auto_declare=False) as producer:
        while True:
            wait_s = max(0.0, due_s - time.monotonic()) if rate else None
            if select.select([sys.stdin], [], [], wait_s)[0]:
                lines = os.read(sys.stdin.fileno(), 4096).split()  # several may have come
                if not lines:
                    return
                rate, due_s = float(lines[-1]), time.monotonic()
            else:
                options = {"affinity": TYPES[number % 3], "priority": number % 11, "on_demand": number % 7 == 0}
                work.apply_async((time.time(),), producer=producer, **options)
                number += 1
                due_s += 1 / rate


if __name__ == "__main__":
    publish()
