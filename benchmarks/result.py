"""The results of a benchmark as a small file: what it printed, when, and with what versions."""

from __future__ import annotations

import json
import os
import platform
from importlib import metadata
from pathlib import Path

import msgspec

from angarium.redis.embedded.server import find_server
from benchmarks.node import BULLMQ
from benchmarks.printed import Section

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
CACHE = ROOT / ".cache"
# Peers come from folders of their own, the others from our environment.
PACKAGES = {
    "batching": ("redis", "hiredis", "uvloop"),
    "routing": ("redis", "aiohttp", "uvloop"),
    "pickup": ("picows", "uvloop"),
    "lake": ("pyspark", "deltalake", "pyarrow", "redis", "hiredis"),
    "database": ("sqlalchemy", "aiosqlite"),
}
PEERS = {"dispatch": ("BullMQ",), "memory": ("BullMQ",), "transactions": ()}


class Result(msgspec.Struct):
    """`steal` is the share of all CPU time that other machines took during the whole part; None
    where nobody wrote it down."""

    part: str
    at: str
    command: str
    seconds: float
    steal: float | None
    cores: int
    versions: dict[str, str]
    sections: list[Section]

    def section(self, title: str) -> Section | None:
        return next((each for each in self.sections if each.title.startswith(title)), None)


def save(result: Result, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(msgspec.to_builtins(result), indent=1, ensure_ascii=False)
    (folder / f"{result.part}.json").write_text(text + "\n")


def load(part: str, folder: Path) -> Result | None:
    path = folder / f"{part}.json"
    return msgspec.json.decode(path.read_bytes(), type=Result) if path.exists() else None


def versions(part: str) -> dict[str, str]:
    """Of what took part in it."""
    found = {"Python": platform.python_version(), **_server()}
    found |= {each: metadata.version(each) for each in PACKAGES.get(part, ())}
    if part in PEERS:
        found |= {k: v for k, v in _peers().items() if not PEERS[part] or k in PEERS[part]}
    return found


def _server() -> dict[str, str]:
    binary = find_server()
    return {binary.flavour.capitalize(): ".".join(map(str, binary.version))}


def _peers() -> dict[str, str]:
    """Of those that were installed at some run; each has a folder of its own."""
    found = {}
    manifest = CACHE / f"bullmq-{BULLMQ}" / "node_modules" / "bullmq" / "package.json"
    if manifest.exists():
        found["BullMQ"] = json.loads(manifest.read_text())["version"]
    for folder in sorted((CACHE / "python-queues").glob("*/")):
        packages = folder.glob("lib/python*/site-packages")
        for where in packages:
            for each in metadata.distributions(path=[str(where)]):
                if each.name.lower() in (folder.name, f"{folder.name}-redis"):
                    found[each.name] = each.version
    return found


def settings() -> str:
    """How the run was called, so that it can be repeated."""
    names = ("ROUNDS", "SCALE", "PEERS", "PARTS", "SERVER_PRELOAD", "LAKE_EVENTS", "LAKE_ROUNDS",
             "LAKE_PARTS")  # fmt: skip
    given = [f"{name}={os.environ[name]}" for name in names if os.environ.get(name)]
    return " ".join(given)
