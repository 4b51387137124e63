"""Runs Chromium through playwright, in desktop and phone size, light and dark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
SIZES = {"desktop": (1360, 900), "phone": (390, 844)}
Theme = Literal["light", "dark"]
TIMEOUT_MS = 40_000


class ChromiumMissing(Exception):
    """The message names the command that installs it."""


def chromium() -> str:
    for name in NAMES:
        found = shutil.which(name)
        if found:
            return found
    raise ChromiumMissing("no Chromium on PATH; `sudo apt-get install -y chromium` installs it")


@contextmanager
def browser() -> Iterator[Browser]:
    path = chromium()
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield found
        finally:
            found.close()


@contextmanager
def opened(
    found: Browser, url: str, *, size: str = "desktop", theme: Theme = "light", **more: Any
) -> Iterator[Page]:
    """Open a page in a new context. Fails the test if a script fails or logs an error."""
    width, height = SIZES[size]
    context = found.new_context(
        viewport={"width": width, "height": height},
        color_scheme=theme,
        device_scale_factor=1,
        has_touch=size == "phone",
        **more,
    )
    context.set_default_timeout(TIMEOUT_MS)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if _is_ours(said) else None)
    try:
        page.goto(url)
        yield page
        assert not problems, problems
        assert page.evaluate("window.hurt") is None, "markup from a message was run"
    finally:
        context.close()


def _is_ours(said: Any) -> bool:
    """Chromium logs each HTTP error; a page may get one without a fault of its own."""
    return said.type == "error" and "Failed to load resource" not in said.text
