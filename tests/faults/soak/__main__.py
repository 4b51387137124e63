"""A soak by hand: `python -m tests.faults.soak --minutes 30`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from functools import partial
from pathlib import Path

import uvloop

from tests.faults.campaign.load import Pace
from tests.faults.soak.run import HALF_LOAD, Soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two samples")
    parser.add_argument("--users", type=int, default=HALF_LOAD.users, help="180: half of 2 cores")
    parser.add_argument("--pause", type=float, default=HALF_LOAD.pause_s, help="of a user, seconds")
    parser.add_argument("--keep", type=Path, help="folder for logs and all samples, kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="angarium-soak-") as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        senders = max(1, options.users // 4)
        pace = Pace(options.users, senders, keys=10 * senders, pause_s=options.pause)
        soak = Soak(options.minutes, options.every, pace, folder, partial(print, file=sys.stderr))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            report = runner.run(soak.run())
        (folder / "samples.json").write_text(json.dumps(report.samples))
    print(report)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
