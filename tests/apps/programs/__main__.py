"""``python -m tests.apps.programs MODULE FUNCTION FILE`` writes the result of the function into the file, as JSON."""

import importlib
import json
import sys
from pathlib import Path

module, function, file = sys.argv[1:]
answer = getattr(importlib.import_module(f"tests.apps.programs.{module}"), function)()
Path(file).write_text(json.dumps(answer))
