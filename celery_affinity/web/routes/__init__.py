"""Routes, by what they are about. Each module has `add`, which adds its routes for a `Site`."""
