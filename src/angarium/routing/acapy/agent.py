"""Finds classes of the ACA-Py agent under either of its package names.

Without an installed agent the plugin gets substitutes, so that it can be imported anywhere.
"""

from __future__ import annotations

import importlib
from typing import Any

PACKAGES = ("acapy_agent", "aries_cloudagent")


def agent_class(path: str, name: str, substitute: type = object) -> Any:
    """A class of the agent; the substitute when no agent is installed."""
    for package in PACKAGES:
        try:
            return getattr(importlib.import_module(f"{package}.{path}"), name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{package}.{path}".startswith(error.name):
                raise
    return substitute
