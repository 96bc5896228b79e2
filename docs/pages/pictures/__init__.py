"""The pictures of the docs: each module has `draw`, which returns an SVG."""
