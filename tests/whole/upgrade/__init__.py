"""Two releases on one server, and on the same jobs: ``make upgrade-check``."""
