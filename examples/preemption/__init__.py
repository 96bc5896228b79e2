"""A nightly batch fills the fleet, and a customer with a promised slot comes: what is stopped, and what is lost?"""
