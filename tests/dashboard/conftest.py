"""One system with sample data and one browser per file: starting them takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser

from tests.dashboard.browser import browser
from tests.dashboard.harness import RunningSystem, SampleData, add_sample_data, run, running_system


@dataclass(frozen=True)
class SystemWithData:
    system: RunningSystem
    data: SampleData

    @property
    def url(self) -> str:
        return self.system.url


@pytest.fixture(scope="module")
def filled() -> Iterator[SystemWithData]:
    with running_system() as system:
        yield SystemWithData(system, run(add_sample_data(system)))


@pytest.fixture(scope="module")
def chrome(filled: SystemWithData) -> Iterator[Browser]:
    """Started after the system: the browser's loop occupies this thread until it is closed."""
    with browser() as found:
        yield found
