"""Angarium from a program: one client for each module, with a loop or without.

    async with Client() as client:                 with SyncClient() as client:
        await client.publish({"order": 1})             client.publish({"order": 1})

An application has both as `app.client` and `app.sync_client`; in the functions that a role runs
they are open already.
"""

from angarium.client.client import Client
from angarium.client.sync import SyncClient

__all__ = ["Client", "SyncClient"]
