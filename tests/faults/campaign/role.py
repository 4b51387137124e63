"""`angarium` with a wall clock that can be set: what a role runs as in a campaign.

SIGUSR1 reads the file that `CAMPAIGN_CLOCK` names, the seconds by which this process is wrong from
now on. Patched before anything of Angarium is imported, so that nobody holds the true clock.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

_true_ns = time.time_ns
_wrong_ns = [0]


def _now_ns() -> int:
    return _true_ns() + _wrong_ns[0]


def _now_s() -> float:
    return _now_ns() / 1e9


def _set(*_: object) -> None:
    text = Path(os.environ["CAMPAIGN_CLOCK"]).read_text()
    _wrong_ns[0] = int(float(text) * 1e9)


if __name__ == "__main__":
    time.time_ns, time.time = _now_ns, _now_s
    signal.signal(signal.SIGUSR1, _set)
    from angarium.cli.main import main

    sys.exit(main())
