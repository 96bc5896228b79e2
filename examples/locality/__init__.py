"""Two workers answer questions about four collections of documents. With hints, they reuse the indexes in memory."""
