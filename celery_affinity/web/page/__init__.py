"""The page in a browser, and its news. What is under ``/page/`` needs no token; all else does."""

from fastapi import FastAPI

from ..site import Site


def add(api: FastAPI, site: Site) -> None:
    """Add the page (``/``, ``/page/...``: files) and its events (``/api/events``) to *api*."""
