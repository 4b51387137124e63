"""Definitions from files into the store, checked against what is known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from angarium.runtime.application import Angarium
from angarium.runtime.errors import AngariumError
from angarium.transactions.errors import PipelineInvalid, StepUnknown
from angarium.transactions.pipeline import (
    DEFINITION_BYTES_MAX,
    Pipeline,
    check_references,
    missing_steps,
    read_pipelines,
)
from angarium.transactions.store import PipelineStore

ENDINGS = (".toml", ".json")


def read_definitions(path: str) -> list[Pipeline]:
    """All definitions of a `.toml` or `.json` file, or of all such files in a folder."""
    place = Path(path)
    files = sorted(place.iterdir()) if place.is_dir() else [place]
    found: list[Pipeline] = []
    for file in files:
        if file.suffix in ENDINGS or not place.is_dir():
            found += _read(file)
    if not found:
        raise PipelineInvalid(f"{path} holds no definitions ({' or '.join(ENDINGS)})")
    return found


def _read(file: Path) -> list[Pipeline]:
    try:
        with file.open(encoding="utf-8") as lines:
            text = lines.read(DEFINITION_BYTES_MAX + 1)
        return read_pipelines(text, toml=file.suffix != ".json")
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineInvalid(f"{file} can't be read: {error}") from None
    except AngariumError as error:
        raise type(error)(f"{file}: {error}") from None


async def load_definitions(
    store: PipelineStore, new: Sequence[Pipeline], app: Angarium
) -> dict[str, int]:
    """Store them all, or none if one can't run or has a step that no node has; name → version."""
    known, step_types = await store.all()
    check_references(new, known)
    for pipeline, step_type in missing_steps(new, {*step_types, *app.handlers("step")}):
        raise StepUnknown(f"{pipeline} has a step {step_type!r} that no node knows")
    return {pipeline.name: await store.put(pipeline) for pipeline in new}


async def load_own_definitions(
    store: PipelineStore, new: Sequence[Pipeline], app: Angarium
) -> list[tuple[str, str]]:
    """Store the definitions that a node starts with; the steps that no node has yet.

    Nodes of several applications may share definitions and start in any order, so a missing step
    is no reason not to start: its transactions wait for a node that has it.
    """
    known, step_types = await store.all()
    check_references(new, known)
    for pipeline in new:
        await store.put(pipeline)
    return missing_steps(new, {*step_types, *app.handlers("step")})
