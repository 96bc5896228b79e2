"""Checks before the upload of a release: ``make release-check``. They do not upload it."""
