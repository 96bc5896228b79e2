"""Doors to other frameworks. Each module needs the framework of its name, and no other module imports it."""
