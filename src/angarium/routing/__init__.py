"""Routing: messages for recipient keys, spread over instances, and the way out again."""
