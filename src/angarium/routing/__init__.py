"""Routing: spreads messages for recipient keys over instances, and delivers outbound messages."""
