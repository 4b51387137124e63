"""Replies of a conversation are sent in the order of its requests, whichever process holds them."""
