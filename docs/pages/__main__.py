"""``python -m docs.pages``: write what the code says of itself into the docs."""

from . import all_of_them

for path, text in all_of_them.made().items():
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
