"""A campaign by hand: `python -m tests.faults.campaign --shape cluster --faults 150`."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
from pathlib import Path

import uvloop

from tests.faults.campaign.load import Pace
from tests.faults.campaign.run import Campaign
from tests.faults.campaign.schedule import SHAPES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.campaign", description=__doc__)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--shape", choices=SHAPES, default="single")
    parser.add_argument("--faults", type=int, default=150)
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--keep", type=Path, help="folder for logs and histories, kept")
    parser.add_argument("--log", action="store_true", help="print each fault as it was injected")
    options = parser.parse_args()
    seed = options.seed
    if seed is None:
        seed = int(os.environ.get("CAMPAIGN_SEED") or random.SystemRandom().randrange(2**32))
    print(f"CAMPAIGN_SEED={seed} shape={options.shape}", flush=True)
    with tempfile.TemporaryDirectory(prefix="angarium-campaign-") as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        pace = Pace(users=12, senders=4, keys=40, pause_s=0.8)
        campaign = Campaign(seed, options.faults, options.seconds, options.shape, folder, pace)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            report = runner.run(campaign.run())
    if options.log:
        print("\n".join(report.log))
    print(report)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
