"""The manifest of the lake: the data pipeline on Spark."""

from __future__ import annotations

from angarium.lake import keys
from angarium.runtime.module import Module, Role

LAKE = Module(
    "lake",
    keys=keys.KEYS,
    settings="angarium.lake.settings:LakeSettings",
    roles=(Role("lake", "angarium.lake.service"),),
    http="angarium.lake.http",
)
