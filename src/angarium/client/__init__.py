"""The Python client: one client for each module, asynchronous or synchronous.

    async with Client() as client:                 with SyncClient() as client:
        await client.publish({"order": 1})             client.publish({"order": 1})

An application has both as `app.client` and `app.sync_client`; they are open in the functions that a
role runs.
"""

from angarium.client.client import Client
from angarium.client.sync import SyncClient

__all__ = ["Client", "SyncClient"]
