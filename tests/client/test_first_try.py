"""Options of the first try that a retry finds; `test_stamping` has the messages that a task publishes then."""

from celery_affinity.client.first_try import Until, expires_at


def test_a_retry_with_another_expiry_has_that():
    until = Until("2030-01-01T00:00:00", 0.0)
    assert expires_at("2030-01-01T00:00:00", {"until": until}) is not None
    assert expires_at("2031-01-01T00:00:00", {"until": until}) is None
    assert expires_at("2030-01-01T00:00:00", {"until": ["2030-01-01T00:00:00", 0.0]}) is None, "from outside"
