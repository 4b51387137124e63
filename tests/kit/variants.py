"""Which replies of the declared transitions a test run has produced.

Every reply that a transition declares must occur in some test. Each process of a run records what
its tests decoded; the process that started the others compares the sum with the declarations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

from angarium.modules import MODULES
from angarium.runtime.transition import Transition

Variant = tuple[str, str, str]
"""Package, transition and the word of the reply."""


PACKAGES = [f"angarium.{module.name}" for module in MODULES]


class VariantRecorder:
    """Records while it is installed; it is never removed, because it lasts as long as the run."""

    def __init__(self) -> None:
        self.produced: set[Variant] = set()

    def install(self) -> None:
        decode, decode_all = Transition.decode, Transition.decode_all

        def recording(transition: Transition[Any], reply: Any) -> Any:
            self._record(transition, [reply])
            return decode(transition, reply)

        def recording_all(transition: Transition[Any], replies: Sequence[Any]) -> Any:
            self._record(transition, replies)
            return decode_all(transition, replies)

        setattr(Transition, "decode", recording)  # noqa: B010
        setattr(Transition, "decode_all", recording_all)  # noqa: B010

    def _record(self, transition: Transition[Any], replies: Sequence[Any]) -> None:
        for reply in replies:
            word = reply[0] if isinstance(reply, list) and reply else reply
            if isinstance(word, bytes):
                found = (transition.package, transition.name, word.decode(errors="replace"))
                self.produced.add(found)


def transitions() -> Iterator[Transition[Any]]:
    """Every transition that a module of the product declares."""
    for package in PACKAGES:
        for found in walk_packages(import_module(package).__path__, f"{package}."):
            for value in vars(import_module(found.name)).values():
                for each in value if isinstance(value, tuple) else (value,):
                    if isinstance(each, Transition):
                        yield each


def declared() -> Iterator[Variant]:
    """Every reply of every transition in the product."""
    for each in transitions():
        for word in each.replies:
            yield each.package, each.name, word


def missing(produced: Iterable[Variant]) -> list[str]:
    return sorted(".".join(each) for each in set(declared()) - set(produced))
