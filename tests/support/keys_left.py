"""What rules leave in Redis."""


def keys_of_rules(client):
    """Return the keys of rules by key and by type, without the metrics of types, which outlive the workers."""
    return [key for key in client.keys("*lane:k*") if b"lane:key:metrics:" not in key]
