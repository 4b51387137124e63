"""Java for tests: short-lived, so that its second compiler costs more than it saves.

A session with its first batch takes twenty and more seconds of CPU, most of which Java spends on
optimising code that a test runs a few times. Java reads the variable by itself, also in the
processes that tests start; the options are none of the product's.
"""

from __future__ import annotations

import os

VARIABLE = "JDK_JAVA_OPTIONS"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def quick_java() -> None:
    """For this process's children, unless somebody has chosen other options."""
    os.environ.setdefault(VARIABLE, QUICK)
