"""Reads pipeline definitions from files, checks their references and stores them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from angarium.runtime.application import Application
from angarium.runtime.errors import AngariumError
from angarium.transactions.errors import PipelineInvalid, StepUnknown
from angarium.transactions.pipeline import (
    DEFINITION_CHARS_MAX,
    PipelineDefinition,
    check_references,
    missing_steps,
    read_pipelines,
)
from angarium.transactions.pipeline_store import PipelineStore

SUFFIXES = (".toml", ".json")


def read_definitions(path: str) -> list[PipelineDefinition]:
    """All definitions in a `.toml` or `.json` file, or in all such files of a folder."""
    given = Path(path)
    files = sorted(given.iterdir()) if given.is_dir() else [given]
    found: list[PipelineDefinition] = []
    for file in files:
        if file.suffix in SUFFIXES or not given.is_dir():
            found += _read(file)
    if not found:
        raise PipelineInvalid(f"{path} has no definitions ({' or '.join(SUFFIXES)})")
    return found


def _read(file: Path) -> list[PipelineDefinition]:
    try:
        with file.open(encoding="utf-8") as lines:
            text = lines.read(DEFINITION_CHARS_MAX + 1)
        return read_pipelines(text, toml=file.suffix != ".json")
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineInvalid(f"{file} can't be read: {error}") from None
    except AngariumError as error:
        raise type(error)(f"{file}: {error}") from None


async def load_definitions(
    store: PipelineStore, new: Sequence[PipelineDefinition], app: Application
) -> dict[str, int]:
    """Store all definitions; name → version. Store none if one has an unknown child or step."""
    known, step_types = await store.all()
    check_references(new, known)
    for pipeline, step_type in missing_steps(new, {*step_types, *app.handlers("step")}):
        raise StepUnknown(f"{pipeline} has a step {step_type!r} that no node has")
    return {pipeline.name: await store.put(pipeline) for pipeline in new}


async def load_node_definitions(
    store: PipelineStore, new: Sequence[PipelineDefinition], app: Application
) -> list[tuple[str, str]]:
    """Store the definitions that a node starts with. Returns (pipeline, step type) of each step
    that no node has yet.

    Nodes of several applications may share definitions and start in any order. A missing step
    therefore does not stop a node: transactions wait for a node that has the step.
    """
    known, step_types = await store.all()
    check_references(new, known)
    for pipeline in new:
        await store.put(pipeline)
    return missing_steps(new, {*step_types, *app.handlers("step")})
