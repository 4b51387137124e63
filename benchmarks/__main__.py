"""`make bench`: every benchmark, or the one named by ONLY. Prints Markdown."""

from __future__ import annotations

import importlib
import os
import platform
import sys
from datetime import UTC, datetime

BENCHMARKS = (
    "batching",
    "database",
    "conversations",
    "conversations_size",
    "dispatch",
    "dispatch_locks",
    "routing",
    "pickup",
    "pickup_listeners",
    "transactions",
    "lake",
)


def main() -> int:
    only = os.environ.get("ONLY")
    if only and only not in BENCHMARKS:
        print(f"no benchmark '{only}'; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    stamp = datetime.now(UTC).strftime("%Y-%m-%d")
    print(f"Run of {stamp}, Python {platform.python_version()}, {os.cpu_count()} cores.\n")
    for name in [only] if only else BENCHMARKS:
        importlib.import_module(f"benchmarks.{name}").main()
        print()
    return 0


sys.exit(main())
