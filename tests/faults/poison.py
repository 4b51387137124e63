"""Ways in which a user's function ends its process or fails, one letter of poison each."""

from __future__ import annotations

import os
import signal
import sys

# How it ends, and whether its process dies of it.
WAYS = {"os._exit": True, "SIGKILL": True, "sys.exit": False, "MemoryError": False}


def take_poison(way: str) -> None:
    if way == "os._exit":
        os._exit(0)
    if way == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory runs out
    if way == "sys.exit":
        sys.exit(0)
    if way == "MemoryError":
        bytearray(1 << 60)
