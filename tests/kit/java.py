"""Java and Spark for tests: short-lived, so what pays after minutes costs more than it saves.

A session with its first batch takes twenty and more seconds of CPU. Most of it is Java's, which
checks, compiles and optimises code that a test runs a few times, and Spark's, which writes Java
code for each query and has it compiled. Java reads the variable by itself, also in the processes
that tests start, and Spark takes its settings from Java; the options are none of the product's.
Long runs of `tests/faults` go without them, and `tests/lake/test_steps.py` has compiled code, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING

from tests.faults.profile import LONG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VARIABLE = "JDK_JAVA_OPTIONS"
INTERPRETED: Mapping[str, str] = MappingProxyType(
    {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
)
# Without a second way: what can't be compiled is an error.
COMPILED: Mapping[str, str] = MappingProxyType(
    {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "CODEGEN_ONLY"}
)
QUICK = " ".join(
    [
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        "-XX:MetaspaceSize=256m",
        "-XX:ReservedCodeCacheSize=200m",
        "-XX:+UnlockDiagnosticVMOptions",
        "-XX:-BytecodeVerificationRemote",
        *(f"-D{name}={value}" for name, value in INTERPRETED.items()),
    ]
)


def quick_java() -> None:
    """For this process's children, unless somebody has chosen other options."""
    if not LONG:
        os.environ.setdefault(VARIABLE, QUICK)


@contextmanager
def compiled(spark: SparkSession) -> Iterator[None]:
    """As in the product: Spark makes code of each query, and has it compiled."""
    before = {name: str(spark.conf.get(name)) for name in COMPILED}
    try:
        for name, value in COMPILED.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
