"""What this process and those below it hold in memory, from the kernel."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Held:
    pid: int
    parent: int
    name: str
    command: bytes
    resident_mib: int
    peak_mib: int


def family() -> list[Held]:
    """Of those that run now."""
    found: dict[int, Held] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
            command = (status.parent / "cmdline").read_bytes()
        except (OSError, ValueError):
            continue  # it has ended
        pid = int(status.parent.name)
        resident, peak = (int(lines.get(k, "0 kB").split()[0]) // 1024 for k in ("VmRSS", "VmHWM"))
        name = lines["Name"].strip()
        found[pid] = Held(pid, int(lines["PPid"]), name, command, resident, peak)
    return [each for each in found.values() if _ours(each.pid, found)]


def _ours(pid: int, found: dict[int, Held]) -> bool:
    while pid in found:
        if pid == os.getpid():
            return True
        pid = found[pid].parent
    return False
