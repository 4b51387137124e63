"""The definitions that a node has read. A version never changes, so each is read once."""

from __future__ import annotations

import asyncio

from angarium.transactions.pipeline import PipelineDefinition
from angarium.transactions.store import PipelineStore


class PipelineCache:
    def __init__(self, store: PipelineStore) -> None:
        self._store = store
        self._known: dict[tuple[str, str], PipelineDefinition] = {}
        self._lock = asyncio.Lock()

    def known(self, name: str, version: str) -> PipelineDefinition | None:
        return self._known.get((name, version))

    async def get(self, name: str, version: str) -> PipelineDefinition:
        """Raises PipelineUnknown or KeyError."""
        async with self._lock:  # many transactions ask for a new version at the same time
            if (name, version) not in self._known:
                for number, pipeline in (await self._store.versions(name)).items():
                    self._known[name, str(number)] = pipeline
        return self._known[name, version]
