"""An app without a name, which registers its task only with ``KNOWS=1``."""

import os

from . import new_app

app = new_app(None)

if os.environ.get("KNOWS") == "1":

    @app.task(name="unnamed.task")
    def task():
        pass
