"""Free loopback ports for servers that are killed and started again.

They are drawn from below the range the kernel uses for outgoing connections: a client that
keeps dialling a dead server inside that range is sooner or later given the server's own port
as its source, connects to itself, and the server can't come back.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

PORT_MIN = 10_240
PORT_MAX = 22_767  # a cluster node also listens at port + 10,000, which must stay below 32,768
BUS_OFFSET = 10_000
ATTEMPTS_MAX = 200


def is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_port(*, with_bus: bool = False) -> int:
    """A port nobody listens at now. It is not reserved: the caller retries if it loses it."""
    # The system's own entropy: a test that seeds `random` must not make two runs collide.
    draw = random.SystemRandom()
    low, high = PORT_MIN, min(PORT_MAX, _ephemeral_start() - 1)
    if high - low < 1_000:
        low, high = 1_024, PORT_MAX
    for _ in range(ATTEMPTS_MAX):
        port = draw.randint(low, high)
        if is_free(port) and (not with_bus or is_free(port + BUS_OFFSET)):
            return port
    raise OSError(f"no free loopback port between {low} and {high}")


def _ephemeral_start() -> int:
    try:
        words = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except OSError:
        return 32_768
    return int(words[0])
