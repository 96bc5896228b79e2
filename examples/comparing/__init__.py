"""What the examples share that run real workers, compare, and draw a page: processes, records, and the page itself."""
