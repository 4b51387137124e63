"""Dead letters: work that was given up after its last try, in every module the same.

An operator lists them, looks at one, retries or drops it, or all whose reason contains a text. The
HTTP operations (`dead_letters_http.py`), the commands and the dashboard are made once, for any
`DeadLetters`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from angarium.runtime.errors import Conflict, NotFound

# Of one page; its bytes are limited too.
PAGE_MAX, PAGE_DEFAULT = 500, 50


class DeadLetterUnknown(NotFound):
    code = "dead_letter_unknown"


class DeadLetterUnusable(Conflict):
    """It can't be retried: its content is gone or can't be read. It can be dropped."""

    code = "dead_letter_unusable"


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """`id` names it in every operation. `reason` is that of the last failure, `tries` the number of
    failures and deaths of holders. A module adds fields that describe its work."""

    id: str
    at_ms: int
    tries: int
    reason: str


Letter = TypeVar("Letter", bound=DeadLetter)


class DeadLetterPage(msgspec.Struct, Generic[Letter], frozen=True):
    """`next` is the parameter `after` of the next page; null on the last page."""

    letters: Sequence[Letter]
    next: str | None = None


class DeadLetters(ABC, Generic[Letter]):
    """The dead letters of one module. `reason` is a text that the last reason contains.

    `retry_all` and `drop_all` act on those that exist when they start: work that dies again
    meanwhile is not included, and what somebody else has retried or dropped meanwhile is left out.
    """

    # Fields of the module's letter that a list of the command line shows.
    columns: Sequence[str] = ()

    @abstractmethod
    async def page(
        self, limit: int = PAGE_DEFAULT, after: str | None = None, reason: str = ""
    ) -> DeadLetterPage[Letter]:
        """Long contents are cut or left out. `after`: `next` of the page before."""

    @abstractmethod
    async def find(self, id: str) -> Letter:
        """With its whole content. Raises DeadLetterUnknown."""

    @abstractmethod
    async def retry(self, id: str) -> None:
        """Queue it again with all its tries. Raises DeadLetterUnknown or DeadLetterUnusable."""

    @abstractmethod
    async def drop(self, id: str) -> None:
        """Raises DeadLetterUnknown."""

    @abstractmethod
    async def retry_all(self, reason: str = "") -> Mapping[str, int]:
        """How many were `retried`, and how many are `unusable`."""

    @abstractmethod
    async def drop_all(self, reason: str = "") -> int:
        """How many were dropped."""


def unknown(id: str) -> DeadLetterUnknown:
    return DeadLetterUnknown(f"there is no dead letter {id[:100]!r}")
