"""Redis keys that rules create."""


def keys_of_rules(client):
    """Return the Redis keys of rules, without the metrics of types, which outlive the workers."""
    return [key for key in client.keys("*lane:k*") if b"lane:key:metrics:" not in key]
