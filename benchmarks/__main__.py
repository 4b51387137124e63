"""`make bench`: every benchmark, or those named by ONLY; then the page is written anew.

Each part is a process of its own, so that one that fails takes nothing with it: its last results
stay, and the exit status says so. What it prints is shown at once, and read back when it has ended.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.kit.leash import LeashedProcess

from benchmarks import page, targets
from benchmarks.measure import cpu_times, steal_since
from benchmarks.parts import BY_NAME, NAMES, PARTS
from benchmarks.printed import read_sections
from benchmarks.result import RESULTS, Result, save, settings, versions

PART_S_MAX = 1_200.0
TAIL_CHARACTERS = 2_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--into", type=Path, help="folder for results and page; else the repo's")
    folder = parser.parse_args().into
    only = [each for each in os.environ.get("ONLY", "").split(",") if each]
    unknown = [each for each in only if each not in NAMES]
    if unknown:
        print(f"no benchmark '{unknown[0]}'; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    chosen = only or [part.name for part in PARTS if not part.asked]
    results, docs = (folder / "results", folder) if folder else (RESULTS, page.DOCS)
    failed = []
    began_s = time.monotonic()
    for place, name in enumerate(chosen, 1):
        minutes = (time.monotonic() - began_s) / 60
        print(f"\n[{place}/{len(chosen)}] {name}, {minutes:.1f} min so far\n", flush=True)
        result = run(name)
        if result is None:
            failed.append(name)
        else:
            save(result, results)
            for claim in targets.missing(result):
                print(f"(no figure for the target: {claim})")
            # After each part, so that a run that is ended early has its results on the page.
            page.write(results, docs)
    print(f"\n{(time.monotonic() - began_s) / 60:.1f} min; the page is {docs / 'benchmarks.md'}")
    if failed:
        print(f"failed: {', '.join(failed)}; their last results were left alone", file=sys.stderr)
    return 1 if failed else 0


def run(name: str) -> Result | None:
    """One part, shown while it runs. None when it failed."""
    stolen, began_s = cpu_times(), time.monotonic()
    code = f"import benchmarks.{name} as part; part.main()"
    with tempfile.TemporaryFile() as errors:
        process = LeashedProcess(
            [sys.executable, "-u", "-c", code],
            env={**dict(BY_NAME[name].limits), **os.environ},
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        # Closed from outside: a part that hangs says nothing, and nobody would look at the clock.
        limit = threading.Timer(PART_S_MAX, process.close)
        limit.start()
        try:
            lines = _shown(process)
            status = process.wait()
        finally:
            limit.cancel()
            process.close()
        if status != 0:
            errors.seek(0)
            print(errors.read().decode(errors="replace")[-TAIL_CHARACTERS:], file=sys.stderr)
            return None
    given = settings()
    return Result(
        name,
        datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        f"make bench ONLY={name}{' ' + given if given else ''}",
        round(time.monotonic() - began_s, 1),
        round(steal_since(stolen), 4),
        os.cpu_count() or 1,
        versions(name),
        read_sections(lines),
    )


def _shown(process: LeashedProcess) -> list[str]:
    assert process.process.stdout is not None
    lines = []
    with process.process.stdout as stdout:
        for raw in stdout:
            line = raw.decode(errors="replace").rstrip("\n")
            print(line, flush=True)
            if "▕" not in line:  # a bar of DuckDB's, which takes `python -c` for a person
                lines.append(line)
    return lines


if __name__ == "__main__":
    sys.exit(main())
