"""How much memory this process has in use, told by its two allocators.

Resident memory also rises with every hole that they keep for later, and so for hours without a
leak. What is in use does not: it is what to look at when a process seems to grow.
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
    """glibc has it since 2.33, others do not."""
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
    """Bytes of libc's heap in use: large objects, and what extensions hold. 0 where unknown."""
    if _mallinfo is None:
        return 0
    found = _mallinfo()
    return int(found.uordblks) + int(found.hblkhd)


def python_blocks() -> int:
    """Objects of up to 512 bytes that Python holds."""
    return sys.getallocatedblocks()


Gauge("angarium_heap_bytes", "Bytes of libc's heap in use.").set_function(heap_bytes)
Gauge("angarium_python_blocks", "Small blocks of memory in use by Python.").set_function(
    python_blocks
)
