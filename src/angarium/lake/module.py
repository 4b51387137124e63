"""The manifest of the lake: the data pipeline on Spark."""

from __future__ import annotations

from angarium.runtime.module import Module, Role

LAKE = Module(
    "lake",
    settings="angarium.lake.settings:LakeSettings",
    roles=(Role("lake", "angarium.lake.service"),),
    http="angarium.lake.http",
)
