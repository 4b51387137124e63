"""What searches have reached so far: inputs that lead to other lines than all the others did.

One file for each target, one input in a line, in base64. A search begins here, and `--keep` writes
down what it added; a short test runs all of them.
"""

from __future__ import annotations

import base64
from pathlib import Path

FOLDER = Path(__file__).parent / "inputs"
# Longer inputs reach little that short ones do not.
INPUT_BYTES_MAX = 1_024


def read(name: str) -> list[bytes]:
    path = FOLDER / f"{name}.txt"
    if not path.exists():
        return []
    return [base64.b64decode(line) for line in path.read_text().splitlines()]


def keep(name: str, found: Path) -> int:
    """Write down what is in the folder `found`; how many inputs that are."""
    inputs = {path.read_bytes() for path in found.iterdir() if path.is_file()} | {*read(name)}
    short = sorted((each for each in inputs if 0 < len(each) <= INPUT_BYTES_MAX), key=_order)
    FOLDER.mkdir(exist_ok=True)
    text = "".join(base64.b64encode(each).decode() + "\n" for each in short)
    (FOLDER / f"{name}.txt").write_text(text)
    return len(short)


def _order(each: bytes) -> tuple[int, bytes]:
    return len(each), each
