"""A large queue: `python -m tests.whole.large`."""
