"""How long a fault run is: short inside `make test`, long under `make faults`."""

from __future__ import annotations

import os

LONG = os.environ.get("FAULTS") == "long"


def rounds(short: int, long: int) -> int:
    return long if LONG else short
