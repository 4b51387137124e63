"""A process that holds a lease and writes under it without ever looking at its clock.

The worst holder there can be: only the fence in the script stands between it and the data.
"""

from __future__ import annotations

import asyncio
import json
import sys

import uvloop

from angarium.runtime.errors import AngariumError
from angarium.runtime.lease import Lease
from angarium.runtime.runtime import Runtime
from angarium.settings import load
from tests.kit.sample import SampleStore

LEASE_MS = 300


async def main() -> None:
    async with Runtime.open(load(), actor=sys.argv[1]) as runtime:
        store = SampleStore(runtime)
        lease = Lease(runtime, store.lease_keys, LEASE_MS)
        while not await lease.acquire():
            await asyncio.sleep(0.01)
        term = lease.term
        print(json.dumps({"role": sys.argv[1], "ready": True, "ports": {}}), flush=True)
        refused = 0
        while True:
            try:
                status = await store.append_fenced(term, f"{term}:{sys.argv[1]}")
                if status == "stale_term":
                    refused += 1
                    print(json.dumps({"refused": refused, "trusted": lease.trusted}), flush=True)
                else:
                    await lease.renew()
            except AngariumError as error:
                print(error, file=sys.stderr)
            await asyncio.sleep(0.005)


uvloop.run(main())
