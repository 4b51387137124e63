"""Hosts of their own on one machine: network namespaces with addresses, joined by a bridge.

Each host is a process that sleeps in a namespace; commands enter it by `Host.argv`. Loopback is
each host's own, so whoever assumes 127.0.0.1 for another process is found out. Disks are shared.
All of it goes away with the processes. Needs the right to make namespaces: `hosts_problem` says why
there is none.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache

from tests.kit.eventually import wait_until
from tests.kit.leash import LeashedProcess

NETWORK = "10.211.0"
START_S_MAX = 20.0


@dataclass(frozen=True)
class Host:
    address: str
    pid: int

    def argv(self, *command: str) -> list[str]:
        """The command as one that runs on this host; its process is the command's own."""
        return ["nsenter", "-t", str(self.pid), "-n", *command]


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def _namespace(stack: ExitStack) -> int:
    process = LeashedProcess(["unshare", "-n", "sleep", "infinity"])
    stack.callback(process.close)

    def apart() -> bool:
        there = subprocess.run(
            ["readlink", f"/proc/{process.pid}/ns/net", "/proc/self/ns/net"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        lines = there.stdout.split()
        return len(lines) == 2 and lines[0] != lines[1]

    wait_until(apart, START_S_MAX)
    return process.pid


@contextmanager
def hosts(count: int) -> Iterator[Sequence[Host]]:
    with ExitStack() as stack:
        switch = _namespace(stack)
        inside = ("nsenter", "-t", str(switch), "-n")
        _run(*inside, "ip", "link", "add", "bridge", "type", "bridge")
        _run(*inside, "ip", "link", "set", "bridge", "up")
        made = []
        for number in range(1, count + 1):
            host = Host(f"{NETWORK}.{number}", _namespace(stack))
            plug = f"port{number}"
            _run(*inside, "ip", "link", "add", plug, "type", "veth", "peer", "name", "eth0",
                 "netns", str(host.pid))  # fmt: skip
            _run(*inside, "ip", "link", "set", plug, "master", "bridge", "up")
            _run(*host.argv("ip", "addr", "add", f"{host.address}/24", "dev", "eth0"))
            for name in ("lo", "eth0"):
                _run(*host.argv("ip", "link", "set", name, "up"))
            made.append(host)
        yield made


@cache
def hosts_problem() -> str | None:
    """Why there can be no hosts here; None where there can."""
    try:
        with hosts(1):
            return None
    except (OSError, subprocess.CalledProcessError, AssertionError) as error:
        return f"no network namespaces can be made here: {error}"
