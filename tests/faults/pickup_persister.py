"""A persister in a process of its own, which dies at a chosen step of a move."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence

import uvloop

from angarium.pickup.archive import MessageArchive
from angarium.pickup.model import StoredMessage
from angarium.pickup.persister import Persister
from angarium.pickup.store import PickupStore
from angarium.runtime.errors import AngariumError
from angarium.runtime.runtime import Runtime
from angarium.settings import load

LEASE_MS = 500


async def die(_: Mapping[str, Sequence[StoredMessage]]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(step: str) -> None:
    settings = load()
    async with Runtime.open(settings) as runtime:
        store = PickupStore(runtime)
        archive = await MessageArchive.open(settings.database_url, settings.prefix)
        persister = Persister(store, archive, 0, LEASE_MS)
        if step:
            setattr(persister, step, die)
        print(json.dumps({"role": "persister", "ready": True, "ports": {}}), flush=True)
        while True:
            try:
                await persister.run_once()
            except AngariumError as error:
                print(error, file=sys.stderr)
            await asyncio.sleep(0.02)


uvloop.run(main(sys.argv[1] if len(sys.argv) > 1 else ""))
