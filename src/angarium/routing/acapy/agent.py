"""The classes of the ACA-Py agent we live in, under either of its package names.

Without an agent installed stand-ins take their places, so that the plugin can be imported and
looked at anywhere.
"""

from __future__ import annotations

import importlib
from typing import Any

PACKAGES = ("acapy_agent", "aries_cloudagent")


def agent_class(path: str, name: str, stand_in: type = object) -> Any:
    """A class of the agent's; the stand-in when no agent is installed."""
    for package in PACKAGES:
        try:
            return getattr(importlib.import_module(f"{package}.{path}"), name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{package}.{path}".startswith(error.name):
                raise
    return stand_in
