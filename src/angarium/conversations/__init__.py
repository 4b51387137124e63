"""Replies leave in the order in which their requests came in, whichever process holds them."""
