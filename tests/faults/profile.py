"""How long a fault run is: long under `make faults`, short under `make faults FAULTS=short`."""

from __future__ import annotations

import os

LONG = os.environ.get("FAULTS") == "long"


def rounds(short: int, long: int) -> int:
    return long if LONG else short
