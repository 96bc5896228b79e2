"""A producer of either release: publishes the calls in the first argument (JSON), or prints the results of ids."""

import json
import sys

import shop

for call in json.loads(sys.argv[1]):
    if isinstance(call, str):
        print(json.dumps([call, shop.app.AsyncResult(call).get(timeout=60)]))
    else:
        name, arguments, options = call
        getattr(shop, name).apply_async(arguments, **options)
