"""``python -m docs.pages``: write the generated pages of the docs."""

from . import all_of_them

for path, make in (all_of_them.PAGES | all_of_them.PICTURES).items():
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(make())
