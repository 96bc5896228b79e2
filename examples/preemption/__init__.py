"""A nightly batch uses all slots, and a customer with a guaranteed slot arrives: a job of the batch is preempted."""
