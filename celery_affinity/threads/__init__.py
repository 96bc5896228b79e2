"""Threads that a fleet's life depends on: work that is repeated until it is stopped, and foreign code that may hang."""
