"""`angarium bench`: runs the benchmarks of the source tree.

The benchmarks install other products in their own environments, so they are not part of the
package. Outside a checkout the command says where they are.
"""

from __future__ import annotations

from typing import Annotated

import typer


def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Benchmarks to run; all by default."),
    ] = None,
) -> int:
    """Run the benchmarks of the source tree, all or by name."""
    import importlib.util
    import os
    import subprocess
    import sys

    from angarium.runtime.errors import NotFound

    here = os.getcwd()  # noqa: PTH109  as the interpreter itself spells it in sys.path
    if here not in sys.path:
        sys.path.insert(0, here)
    if importlib.util.find_spec("benchmarks") is None:
        raise NotFound("the benchmarks are in the source tree; run this in a checkout of it")
    env = {**os.environ, "ONLY": ",".join(names or [])}
    return subprocess.run([sys.executable, "-m", "benchmarks"], env=env, check=False).returncode
