"""`python -m tests.fuzz [NAME…] [--seconds N]`: each parser under atheris, guided by coverage.

A search begins with the seeds, the corpus and what the last one left in `.cache/fuzz/NAME`;
`--keep` adds what it reached to the corpus. A finding ends the run with exit 1; its input lies
beside, to become a seed of the target.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tests.fuzz import corpus

CACHE = Path(".cache") / "fuzz"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=int, default=30, help="for each parser")
    parser.add_argument("--keep", action="store_true", help="add what was reached to the corpus")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        _search(given.one, given.seconds)
        return 0
    from tests.fuzz.targets import TARGETS

    failed = []
    for name in given.names or TARGETS:
        print(f"· {name}: {given.seconds} s", flush=True)
        command = [sys.executable, "-m", "tests.fuzz", "--one", name]
        ended = subprocess.run([*command, "--seconds", str(given.seconds)], check=False)
        if ended.returncode:
            failed.append(name)
        if given.keep:
            print(f"  {corpus.keep(name, CACHE / name)} inputs in the corpus", flush=True)
    print("findings in:", ", ".join(failed) if failed else "none")
    return 1 if failed else 0


def _search(name: str, seconds: int) -> None:
    # A process of its own for each: libFuzzer ends the process it runs in.
    import atheris

    with atheris.instrument_imports(include=["angarium"]):
        from tests.fuzz.targets import TARGETS
    folder = CACHE / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate([*TARGETS[name].seeds, *corpus.read(name)]):
        (folder / f"seed-{number}").write_bytes(seed)
    flags = [f"-max_total_time={seconds}", "-max_len=4096", "-print_final_stats=1", "-verbosity=0"]
    atheris.Setup(
        [sys.argv[0], str(folder), f"-artifact_prefix={CACHE}/{name}-", *flags], TARGETS[name].run
    )
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
