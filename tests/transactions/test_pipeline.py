"""Pipeline definitions: their formats, and which ones are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium.runtime.errors import AngariumError
from angarium.transactions.definitions import read_definitions
from angarium.transactions.errors import NameInvalid, PipelineInvalid, PipelineLoops, StepUnknown
from angarium.transactions.pipeline import (
    check_references,
    definition_of,
    missing_steps,
    pipeline_of,
    read_pipelines,
    stored_pipeline,
)

TOML = """
name = "payment"
description = "Charges a card and tells the shop."
node_group = "money"
timeout_ms = 60000

[[steps]]
type = "charge-card"
timeout_ms = 5000
parameters = { currency = "EUR" }

[[steps]]
pipeline = "notify"
for_each = "receivers"
"""


def _named(name: str, *children: str) -> Any:
    return pipeline_of({"name": name, "steps": [{"pipeline": child} for child in children]})


def test_toml_json_and_python_say_the_same() -> None:
    (pipeline,) = read_pipelines(TOML, toml=True)
    assert pipeline.steps[0].parameters == {"currency": "EUR"}
    assert pipeline.children == ("notify",)
    text = definition_of(pipeline).decode()
    assert read_pipelines(text, toml=False) == [pipeline]
    assert stored_pipeline(text.encode(), 3).version == 3


def test_one_file_may_hold_many_and_a_folder_all(tmp_path: Path) -> None:
    many = '[[pipelines]]\nname = "a"\nsteps = [{type="x"}]\n' * 1
    (tmp_path / "many.toml").write_text(many)
    (tmp_path / "one.json").write_text('{"name":"b","steps":[{"type":"x"}]}')
    (tmp_path / "notes.txt").write_text("not a definition")
    assert [each.name for each in read_definitions(str(tmp_path))] == ["a", "b"]
    with pytest.raises(PipelineInvalid, match="nowhere"):
        read_definitions(str(tmp_path / "nowhere.toml"))
    (tmp_path / "one.json").write_text("{")
    with pytest.raises(PipelineInvalid, match=r"one\.json"):
        read_definitions(str(tmp_path))


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"name": "p"},
        {"name": "p", "steps": []},
        {"name": "p", "steps": [{}]},
        {"name": "p", "steps": [{"type": "a", "pipeline": "b"}]},
        {"name": "p", "steps": [{"type": "a", "for_each": "x"}]},
        {"name": "p", "steps": [{"type": "a", "timeout_ms": 0}]},
        {"name": "p", "steps": [{"type": "a"}] * 101},
        {"name": "p", "steps": [{"type": "a"}], "version": 0},
        {"name": "p", "steps": [{"type": "a"}], "colour": "red"},
        {"name": "p", "steps": "a"},
        {"name": "p", "steps": [{"type": "a", "parameters": {"x": object()}}]},
    ],
)
def test_an_invalid_definition_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PipelineInvalid):
        pipeline_of(wrong)


@pytest.mark.parametrize("name", ["", "a b", 'a"b', "a|b", "ä", "x" * 129])
def test_names_that_scripts_cannot_quote_are_refused(name: str) -> None:
    with pytest.raises(NameInvalid):
        pipeline_of({"name": name, "steps": [{"type": "a"}]})


def test_children_must_exist_and_not_lead_back() -> None:
    with pytest.raises(StepUnknown, match="'b', which is not there"):
        check_references([_named("a", "b")], {})
    with pytest.raises(PipelineLoops, match="a → a"):
        check_references([_named("a", "a")], {})
    known = {"b": _named("b", "c"), "c": _named("c", "a"), "a": _named("a", "d")}
    known["d"] = pipeline_of({"name": "d", "steps": [{"type": "x"}]})
    with pytest.raises(PipelineLoops, match="a → b → c → a"):
        check_references([_named("a", "b")], known)
    check_references([_named("a", "d", "d")], known)


def test_step_types_are_checked_once_some_are_known() -> None:
    new = pipeline_of({"name": "p", "steps": [{"type": "x"}]})
    assert missing_steps([new], ()) == []
    assert missing_steps([new], {"x"}) == []
    assert missing_steps([new], {"y"}) == [("p", "x")]


@given(st.text(max_size=200), st.booleans())
def test_any_text_is_a_definition_or_a_named_error(text: str, toml: bool) -> None:
    try:
        read_pipelines(text, toml=toml)
    except AngariumError:
        return


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["name", "steps", "version", "node_group"]), _values))
def test_any_mapping_is_a_definition_or_a_named_error(value: dict[str, Any]) -> None:
    try:
        pipeline_of(value)
    except AngariumError:
        return
