"""Pipeline definitions: parsed and checked.

No I/O: text or values in, a `PipelineDefinition` or a named error out. A step has either a type,
which names a decorated function, or a pipeline, which it runs as child transactions.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from angarium.transactions.errors import PipelineInvalid, PipelineLoops, StepUnknown
from angarium.transactions.model import check_name

STEPS_MAX = 100
DEFINITION_CHARS_MAX = 256 * 1024


class StepDefinition(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """`for_each` names a list in the step's data. Each element becomes a child transaction."""

    type: str | None = None
    pipeline: str | None = None
    for_each: str | None = None
    description: str = ""
    timeout_ms: int | None = None
    parameters: dict[str, Any] = {}


class PipelineDefinition(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True
):
    """`version` None: the store assigns the next number."""

    name: str
    steps: tuple[StepDefinition, ...]
    version: int | None = None
    description: str = ""
    node_group: str = "default"
    timeout_ms: int | None = None

    @property
    def children(self) -> tuple[str, ...]:
        return tuple(step.pipeline for step in self.steps if step.pipeline is not None)

    @property
    def step_types(self) -> tuple[str, ...]:
        return tuple(step.type for step in self.steps if step.type is not None)

    @property
    def needs(self) -> str:
        """The step types in order, as scripts read them. `*` stands for a child pipeline."""
        return " ".join(step.type or "*" for step in self.steps)


_encode = msgspec.json.Encoder(order="deterministic").encode


def read_pipelines(text: str, *, toml: bool) -> list[PipelineDefinition]:
    """One definition, or several as `[[pipelines]]` (TOML) or a list (JSON)."""
    if len(text) > DEFINITION_CHARS_MAX:
        raise PipelineInvalid(f"a definition may have at most {DEFINITION_CHARS_MAX} characters")
    try:
        value: Any = tomllib.loads(text) if toml else msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise PipelineInvalid(f"the definition cannot be parsed: {error}") from None
    if isinstance(value, dict) and "pipelines" in value:
        value = value["pipelines"]
    return [pipeline_of(each) for each in (value if isinstance(value, list) else [value])]


def pipeline_of(value: Mapping[str, Any] | PipelineDefinition) -> PipelineDefinition:
    """Check a definition that TOML, JSON or Python gave."""
    try:
        pipeline = (
            value
            if isinstance(value, PipelineDefinition)
            else msgspec.convert(value, PipelineDefinition)
        )
        _encode(pipeline)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise PipelineInvalid(f"the definition is not valid: {error}") from None
    return _checked(pipeline)


def definition_of(pipeline: PipelineDefinition) -> bytes:
    """The stored form: JSON without the version, which is part of the field's name."""
    return _encode(msgspec.structs.replace(pipeline, version=None))


def stored_pipeline(definition: bytes, version: int) -> PipelineDefinition:
    pipeline = msgspec.json.decode(definition, type=PipelineDefinition)
    return msgspec.structs.replace(pipeline, version=version)


def _checked(pipeline: PipelineDefinition) -> PipelineDefinition:
    check_name(pipeline.name, "pipeline")
    check_name(pipeline.node_group, "node group")
    if not 1 <= len(pipeline.steps) <= STEPS_MAX:
        raise PipelineInvalid(f"{pipeline.name} must have 1 to {STEPS_MAX} steps")
    for number in (pipeline.version, pipeline.timeout_ms):
        if number is not None and not 1 <= number <= 2**53:
            raise PipelineInvalid(
                f"{pipeline.name}: version and timeout_ms must be positive numbers"
            )
    for number, step in enumerate(pipeline.steps, 1):
        _check_step(step, f"{pipeline.name}, step {number}")
    return pipeline


def _check_step(step: StepDefinition, where: str) -> None:
    if (step.type is None) == (step.pipeline is None):
        raise PipelineInvalid(f"{where} must have a type or a pipeline, and not both")
    if step.for_each is not None and step.pipeline is None:
        raise PipelineInvalid(f"{where}: for_each needs a pipeline")
    if step.timeout_ms is not None and not 1 <= step.timeout_ms <= 2**53:
        raise PipelineInvalid(f"{where}: timeout_ms must be a positive number")
    check_name(step.type or step.pipeline or "", where)


def check_references(
    new: Sequence[PipelineDefinition], known: Mapping[str, PipelineDefinition]
) -> None:
    """Refuse definitions with unknown children, or with children that lead back to them."""
    together = {**known, **{pipeline.name: pipeline for pipeline in new}}
    for pipeline in new:
        for child in pipeline.children:
            if child not in together:
                raise StepUnknown(f"{pipeline.name} calls pipeline {child!r}, which is not there")
        _check_loops(pipeline.name, together)


def missing_steps(
    new: Iterable[PipelineDefinition], step_types: Collection[str]
) -> list[tuple[str, str]]:
    """(pipeline, step type) of every step that no node has.

    Returns nothing while no step type is known, because a new system has no node yet.
    """
    return [
        (pipeline.name, each)
        for pipeline in (new if step_types else ())
        for each in dict.fromkeys(pipeline.step_types)
        if each not in step_types
    ]


def _check_loops(name: str, pipelines: Mapping[str, PipelineDefinition]) -> None:
    path: list[str] = []
    done: set[str] = set()

    def visit(current: str) -> None:
        if current in path:
            loop = " → ".join([*path[path.index(current) :], current])
            raise PipelineLoops(f"{name} would never end: {loop}")
        if current in done or current not in pipelines:
            return
        path.append(current)
        for child in pipelines[current].children:
            visit(child)
        path.pop()
        done.add(current)

    visit(name)
