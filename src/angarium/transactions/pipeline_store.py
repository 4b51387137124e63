"""Pipeline definitions in Redis. Every partition has a copy; the first one assigns the versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from angarium.runtime.runtime import Runtime
from angarium.runtime.transition import Transition
from angarium.transactions import keys
from angarium.transactions.errors import PipelineUnknown, VersionTaken
from angarium.transactions.model import pairs_of
from angarium.transactions.pipeline import PipelineDefinition, definition_of, stored_pipeline
from angarium.transactions.settings import TransactionsSettings


class PutPipelineArgs(NamedTuple):
    """An empty version is the next; `steps` are the step types in order, `*` for a pipeline."""

    pipeline: str
    version: str
    definition: bytes
    node_group: str
    timeout_ms: str
    steps: str
    versions_max: int
    default_ms: int
    dead_ms: int


class StoredVersion(NamedTuple):
    version: int


class TakenVersion(NamedTuple):
    version: int


PUT_PIPELINE: Transition[Any] = Transition(
    "angarium.transactions",
    "put_pipeline",
    keys={
        "pipeline": keys.PIPELINE,
        "names": keys.PIPELINE_NAMES,
        "groups": keys.NODE_GROUPS,
    },
    args=PutPipelineArgs,
    replies={"stored": StoredVersion, "same": StoredVersion, "version_taken": TakenVersion},
)


class ReadPipelinesArgs(NamedTuple):
    """An empty name means all."""

    name: str


class StoredPipelines(NamedTuple):
    """A row is a name, then names and values of its fields in turn."""

    step_types: list[str]
    rows: list[Any]


READ_PIPELINES: Transition[Any] = Transition(
    "angarium.transactions",
    "read_pipelines",
    keys={"names": keys.PIPELINE_NAMES, "step_types": keys.STEP_TYPES},
    stems={"pipelines": keys.PIPELINE},
    args=ReadPipelinesArgs,
    replies={"found": StoredPipelines},
)

Versions = Mapping[int, PipelineDefinition]


class PipelineStore:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._partitions = range(runtime.settings.partitions)
        self._settings = runtime.settings.group(TransactionsSettings)

    async def put(self, pipeline: PipelineDefinition) -> int:
        """Store a definition and return its version. A repeat restores a copy that is missing."""
        version = "" if pipeline.version is None else str(pipeline.version)
        timeout_ms = "" if pipeline.timeout_ms is None else str(pipeline.timeout_ms)
        definition = definition_of(pipeline)
        for partition in self._partitions:
            args = PutPipelineArgs(
                pipeline.name, version, definition, pipeline.node_group, timeout_ms,
                pipeline.needs, self._settings.pipeline_versions_max,
                self._settings.transaction_timeout_ms, self._settings.dead_letter_retention * 1000,
            )  # fmt: skip
            found = await self._runtime.call(PUT_PIPELINE, partition, args)
            if isinstance(found, TakenVersion):
                raise VersionTaken(
                    f"another definition is stored as version {found.version} of {pipeline.name}; "
                    "choose a new version"
                )
            version = str(found.version)
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
        reply = await self._runtime.call(READ_PIPELINES, 0, ReadPipelinesArgs(name))
        found = {row[0].decode(): _versions(pairs_of(row, 1)) for row in reply.rows}
        return dict(sorted(found.items())), reply.step_types


def _versions(fields: Mapping[bytes, bytes]) -> Versions:
    versions = {}
    for field, value in fields.items():
        kind, _, number = field.partition(b":")
        if kind == b"definition":
            versions[int(number)] = stored_pipeline(value, int(number))
    return versions
