"""This version beside an earlier one of ours: dispatch end to end, and gathered calls.

Both run the same parts on one server in turn, each with its own source and, for the rest, with the
libraries that are installed here. `BASE` names the earlier version, as git knows it; the default is
0.1.0. Its files are unpacked under `.cache/versions`.

`make bench ONLY=versions` runs both parts, `PARTS=dispatch` or `PARTS=batching` one.
"""

from __future__ import annotations

import io
import os
import statistics
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tests.kit.roles import RoleProcess
from tests.kit.server import ServerProcess

from benchmarks.end_to_end import Round, Spread, System, in_turn, table, wait_for
from benchmarks.fabric import DEADLINE_S, Fabric
from benchmarks.sizes import count, rounds

ROOT = Path(__file__).parents[1]
BASE = os.environ.get("BASE", "54e31ba")  # the last commit of 0.1.0
ROUNDS = rounds(21)
MESSAGES = count(60_000, least=100)
ITEMS = count(120_000, least=100)
# The installed command would import what only this version has.
COMMAND = ("-c", "from angarium.cli.main import main; main()")
DRIVER = Path(__file__).with_name("batching_driver.py")
AS_FILE = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"


def main() -> None:
    chosen = os.environ.get("PARTS", "dispatch,batching").split(",")
    base = unpacked(BASE)
    with ServerProcess() as server, ExitStack() as stack:
        witness = server.client(decode_responses=True)
        for part, title in (("dispatch", "Dispatch, end to end"), ("batching", "Gathered calls")):
            if part not in chosen:
                continue
            systems: dict[System, int] = {}
            for name, prefix, source in ((f"base {BASE}", "a:", base), ("now", "b:", ROOT)):
                system = started(part, name, prefix, source, server)
                stack.enter_context(system)
                systems[system] = MESSAGES if part == "dispatch" else ITEMS
            results = in_turn(systems, witness, ROUNDS)
            print(f"## {title}, beside an earlier version\n")
            print(table(results))
            print(f"\n## {title}, now as a share of the earlier version\n")
            print(shares(results))
            stack.pop_all().close()


def unpacked(ref: str) -> Path:
    """The files of a commit, in a folder of its own."""
    folder = ROOT / ".cache" / "versions" / ref
    if not folder.exists():
        archive = subprocess.run(
            ["git", "archive", ref, "src", "tests", "benchmarks"],
            cwd=ROOT,
            check=True,
            capture_output=True,
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
    return folder


def started(
    part: str, name: str, prefix: str, source: Path, server: ServerProcess
) -> Fabric | GatheredCalls:
    paths = {"PYTHONPATH": os.pathsep.join([str(source / "src"), str(source)])}
    if part == "dispatch":
        return Fabric(name, server, prefix=prefix, settings=paths, command=COMMAND)
    return GatheredCalls(name, server, prefix, paths)


class GatheredCalls:
    """64 tasks in one process, each awaiting one transition after the other, journal on."""

    def __init__(
        self, name: str, server: ServerProcess, prefix: str, env: Mapping[str, str]
    ) -> None:
        self.name = name
        self._orders = f"{prefix}benchmark:orders:batching"
        self._witness: Any = server.client(decode_responses=True)
        self._process = RoleProcess(["-c", AS_FILE, str(DRIVER), server.url, self._orders], env)

    def __enter__(self) -> Self:
        self._process.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close()

    def reset(self) -> None:
        """The process clears its own keys behind each order."""

    def run(self, messages: int) -> None:
        self._witness.rpush(self._orders, messages)
        done = f"{self._orders}:done"
        wait_for(lambda: self._witness.lpop(done), DEADLINE_S, f"{self.name}: {messages} calls")

    def pids(self) -> Mapping[str, Sequence[int]]:
        return {"caller": [self._process.pid]}


def shares(results: Mapping[str, Sequence[Round]]) -> str:
    """The middle half of the rounds, for one disturbed round says nothing."""
    base, now = results.values()
    lines = ["| | median | quartiles | lowest–highest |", "|---|---:|---:|---:|"]
    measures = (
        ("messages/s", [n.rate / b.rate for n, b in zip(now, base, strict=True)]),
        ("Redis CPU", [n.redis_us / b.redis_us for n, b in zip(now, base, strict=True)]),
    )
    for name, values in measures:
        spread = Spread.of(values)
        low, _, high = statistics.quantiles(values, n=4)
        lines.append(
            f"| {name} | {spread.median:.3f} | {low:.3f}–{high:.3f} "
            f"| {spread.low:.3f}–{spread.high:.3f} |"
        )
    return "\n".join(lines)
