"""Names of the seed that clients may use, and the names that this module gives to them. Pure.

The setting `THRESHOLD_TIMESTAMP` is the seed's too; the settings loader reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

METHOD_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "addMessageToQueue": "addMessage",
        "addLiveModeSession": "addLiveSession",
        "removeLiveModeSession": "removeLiveSession",
    }
)
