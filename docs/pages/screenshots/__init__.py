"""The screenshots of the page: `python -m docs.pages.screenshots`. It takes two minutes, and Chromium."""
