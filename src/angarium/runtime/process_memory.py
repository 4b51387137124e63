"""The memory that this process uses, as its two allocators report it.

Resident memory also contains free memory that the allocators keep, so it can rise for hours without
a leak. The memory in use does not; use it to decide whether a process leaks.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

from prometheus_client import Gauge


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    )  # fmt: skip


def _find_mallinfo() -> Callable[[], _Mallinfo2] | None:
    """Only glibc 2.33 and later has mallinfo2."""
    try:
        found = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    found.restype = _Mallinfo2
    found.argtypes = ()
    asked: Callable[[], _Mallinfo2] = found
    return asked


_mallinfo = _find_mallinfo()


def heap_bytes() -> int:
    """Bytes of libc's heap in use by large objects and extensions; 0 where unknown."""
    if _mallinfo is None:
        return 0
    found = _mallinfo()
    return int(found.uordblks) + int(found.hblkhd)


def python_blocks() -> int:
    """Number of blocks of up to 512 bytes that Python has allocated."""

    return sys.getallocatedblocks()


Gauge("angarium_heap_bytes", "Bytes of libc's heap in use.").set_function(heap_bytes)
Gauge("angarium_python_blocks", "Small blocks of memory in use by Python.").set_function(
    python_blocks
)
