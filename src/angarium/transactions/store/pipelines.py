"""Pipeline definitions in Redis. Every partition has a copy; the first one assigns the versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from angarium.runtime.runtime import Runtime
from angarium.runtime.scripts import load_script, status_of
from angarium.transactions import keys as transactions_keys
from angarium.transactions.errors import PipelineUnknown, VersionTaken
from angarium.transactions.model import pairs_of
from angarium.transactions.pipeline import PipelineDefinition, definition_of, stored_pipeline
from angarium.transactions.store.keys import TransactionKeys

PUT_PIPELINE = load_script("angarium.transactions", "put_pipeline")
READ_PIPELINES = load_script("angarium.transactions", "read_pipelines")

Versions = Mapping[int, PipelineDefinition]


class PipelineStore:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._keys = TransactionKeys(runtime)

    async def put(self, pipeline: PipelineDefinition) -> int:
        """Store a definition and return its version. A repeat restores a copy that is missing."""
        version: str | int = "" if pipeline.version is None else pipeline.version
        for partition in self._keys.partitions:
            names = [
                self._keys.name(transactions_keys.PIPELINE, partition, pipeline.name),
                self._keys.name(transactions_keys.PIPELINE_NAMES, partition),
            ]
            timeout = "" if pipeline.timeout_ms is None else pipeline.timeout_ms
            args = (
                pipeline.name, version, definition_of(pipeline), pipeline.node_group, timeout,
                pipeline.needs,
            )  # fmt: skip
            reply = await self._runtime.run(PUT_PIPELINE, partition, names, args)
            version = int(reply[1])
            if status_of(reply) == "version_taken":
                raise VersionTaken(
                    f"another definition is stored as version {version} of {pipeline.name}; "
                    "choose a new version"
                )
        return int(version)

    async def all(self) -> tuple[dict[str, PipelineDefinition], Sequence[str]]:
        """The newest version of each pipeline by name, and the step types that nodes have."""
        found, step_types = await self._read("")
        return {name: versions[max(versions)] for name, versions in found.items()}, step_types

    async def versions(self, name: str) -> Versions:
        found, _ = await self._read(name)
        if name not in found:
            raise PipelineUnknown(f"there is no pipeline {name!r}")
        return found[name]

    async def _read(self, name: str) -> tuple[dict[str, Versions], Sequence[str]]:
        names = [
            self._keys.name(transactions_keys.PIPELINE_NAMES, 0),
            self._keys.stem(transactions_keys.PIPELINE, 0),
            self._keys.name(transactions_keys.STEP_TYPES, 0),
        ]
        step_types, *replies = await self._runtime.run(READ_PIPELINES, 0, names, (name,))
        found = {reply[0].decode(): _versions(pairs_of(reply, 1)) for reply in replies}
        return dict(sorted(found.items())), [each.decode() for each in step_types]


def _versions(fields: Mapping[bytes, bytes]) -> Versions:
    versions = {}
    for field, value in fields.items():
        kind, _, number = field.partition(b":")
        if kind == b"definition":
            versions[int(number)] = stored_pipeline(value, int(number))
    return versions
