"""A real Chromium, driven by playwright, in the sizes and themes that people have."""

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
PATIENCE_MS = 40_000


class ChromiumMissing(Exception):
    """Says which command installs it."""


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
    """A page of its own, which fails the test if a script failed or something was refused."""
    width, height = SIZES[size]
    context = found.new_context(
        viewport={"width": width, "height": height},
        color_scheme=theme,
        device_scale_factor=1,
        has_touch=size == "phone",
        **more,
    )
    context.set_default_timeout(PATIENCE_MS)
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
    """Chromium itself notes each answer that is an error; a page may well ask and be refused."""
    return said.type == "error" and "Failed to load resource" not in said.text
