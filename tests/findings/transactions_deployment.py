"""Transactions on a real server with nodes and an API as processes.

It uses only what 0.1.0 has as well, so that a test of a finding can run against both.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from angarium.runtime.runtime import Runtime
from angarium.transactions.client import Transactions
from angarium.transactions.model import Transaction, TransactionStart
from angarium.transactions.pipeline import pipeline_of
from angarium.transactions.store import PipelineStore
from tests.kit.eventually import eventually
from tests.kit.roles import RoleProcess
from tests.kit.sample import sample_runtime

DEADLINE_S = 90.0
APPLICATIONS = "tests.findings.two_applications"


class Deployment:
    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.client = Transactions(runtime)
        self._pipelines = PipelineStore(runtime)

    @property
    def env(self) -> Mapping[str, str]:
        settings = self.runtime.settings
        return {
            "ANGARIUM_REDIS_URL": settings.redis_url or "",
            "ANGARIUM_PREFIX": settings.prefix,
            "ANGARIUM_HOME": str(settings.home),
            "ANGARIUM_ALLOW_PRIVATE_ADDRESSES": "true",
        }

    def node(self, app: str) -> RoleProcess:
        return self.role("node", "--app", f"{APPLICATIONS}:{app}")

    def role(self, *args: str, **env: str) -> RoleProcess:
        return RoleProcess(["serve", *args], {**self.env, **env})

    async def define(self, name: str, *step_types: str, **more: Any) -> int:
        steps = [{"type": each} for each in step_types]
        return await self._pipelines.put(pipeline_of({"name": name, "steps": steps, **more}))

    async def start(self, pipeline: str, count: int = 1, **more: Any) -> list[str]:
        starts = [self.client.start(TransactionStart(pipeline, **more)) for _ in range(count)]
        return [each.transaction_id for each in await asyncio.gather(*starts)]

    async def ended(self, ids: Iterable[str]) -> list[Transaction]:
        """All of them, when the last has ended."""
        left, found = list(ids), []

        async def all_ended() -> bool:
            while left:
                state = await self.client.get(left[-1])
                if not state.status.final:
                    return False
                found.append(state)
                left.pop()
            return True

        await eventually(all_ended, DEADLINE_S)
        return found

    async def wait_for_status(self, id: str, status: str) -> Transaction:
        async def there() -> Transaction | None:
            found = await self.client.get(id)
            return found if found.status == status else None

        found = await eventually(there, DEADLINE_S)
        assert found is not None
        return found


def outcomes(found: Iterable[Transaction]) -> Counter[str]:
    """How they ended, with the note of those that did not succeed."""
    return Counter(
        str(each.status) if each.status == "success" else f"{each.status}: {each.note}"
        for each in found
    )


def done_by(transaction: Transaction) -> list[tuple[str, int]]:
    return [(step, pid) for step, pid in msgspec.json.decode(transaction.output)["done"]]


@asynccontextmanager
async def deployment(redis_url: str, tmp_path: Any, **overrides: Any) -> AsyncIterator[Deployment]:
    given = {"home": tmp_path, "allow_private_addresses": True, **overrides}
    async with sample_runtime(redis_url, **given) as runtime:
        found = Deployment(runtime)
        try:
            yield found
        finally:
            await found.client.close()
