"""The Redis client: one implementation for everything in Angarium that talks to Redis.

It knows single servers, sentinels, clusters and the embedded server; it knows no setting, no key
and no module of Angarium. `client.py` is the asynchronous client, `blocking.py` the same client
for code without an event loop.
"""
