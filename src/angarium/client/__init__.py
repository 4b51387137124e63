"""The Python client: one client for each module, asynchronous or synchronous.

    async with Client() as client:                 with SyncClient() as client:
        await client.publish({"order": 1})             client.publish({"order": 1})

`HttpClient(url, token=…)` sends messages and reads their results where only the API can be reached;
`SyncClient(HttpClient(url))` does so synchronously.

An application has both as `app.client` and `app.sync_client`; they are open in the functions that a
role runs.
"""

from angarium.client.client import Client
from angarium.client.http import HttpClient
from angarium.client.sync import SyncClient

__all__ = ["Client", "HttpClient", "SyncClient"]
