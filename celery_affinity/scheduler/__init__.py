"""The client side of the server functions: `Scheduler` has one method per function."""
