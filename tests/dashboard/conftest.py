"""One furnished building and one browser for each file: starting them takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser

from tests.dashboard.browser import browser
from tests.dashboard.building import Building, Story, building, furnish, run


@dataclass(frozen=True)
class Furnished:
    building: Building
    story: Story

    @property
    def url(self) -> str:
        return self.building.url


@pytest.fixture(scope="module")
def furnished() -> Iterator[Furnished]:
    with building() as here:
        yield Furnished(here, run(furnish(here)))


@pytest.fixture(scope="module")
def chrome(furnished: Furnished) -> Iterator[Browser]:
    """After the building: the browser's loop stays in this thread until it is closed."""
    with browser() as found:
        yield found
