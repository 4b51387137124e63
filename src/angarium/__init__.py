"""Angarium: message delivery on Redis or Valkey, accounted for by a Spark lake."""

from __future__ import annotations

TYPE_CHECKING = False  # as `typing` has it, without loading it: the command line starts here
if TYPE_CHECKING:
    from typing import Any

    from angarium.client.application import Angarium
    from angarium.runtime.retry_policy import DoNotRetry

__version__ = "0.2.0"
__all__ = ["Angarium", "DoNotRetry", "__version__"]


def __getattr__(name: str) -> Any:
    # Not imported before it is asked for: the command line's help must stay fast.
    if name == "Angarium":
        from angarium.client.application import Angarium

        return Angarium
    if name == "DoNotRetry":
        from angarium.runtime.retry_policy import DoNotRetry

        return DoNotRetry
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
