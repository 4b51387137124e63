"""Types the first block of every module's page beside a running `angarium up`, in a clean home and
in the order of the first hour, and compares what is printed with what the page shows. Each is typed
twice, as people do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from angarium.modules import MODULES
from tests.docs.blocks import of_page
from tests.docs.shell import UP_ROLES
from tests.kit.leash import LeashedProcess
from tests.kit.roles import ANY_PORT, ROOT, RoleProcess

PAGE = "docs/guides/first-hour.md"
MODULE = re.compile(r"\(\.\./(modules/\w+\.md)\)")
MARK = "=== end of block ==="
SECONDS_MAX = 300  # beside other tests
# The runtime has no page of its own; tests/docs/test_lake_pages.py types those of the lake.
OTHERS = {"runtime", "lake"}


@pytest.mark.timeout(SECONDS_MAX + 60)
def test_the_first_block_of_every_module_prints_what_its_page_shows(tmp_path: Path) -> None:
    modules = [f"docs/{found}" for found in MODULE.findall((ROOT / PAGE).read_text())]
    assert {Path(page).stem for page in modules} == {each.name for each in MODULES} - OTHERS
    modules *= 2
    # Without the files of the first time, which would show their content again.
    typed = [f"rm -f *.txt\n{of_page(page, 'bash')[0].text}" for page in modules]
    shown = [of_page(page, "text")[0].text for page in modules]
    path, top, stop = (block.text for block in of_page(PAGE, "sh"))
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parents[1])
    settings = {**ANY_PORT, "ANGARIUM_HOME": str(tmp_path / ".angarium")}
    # The lake's Spark has tests of its own and would only load the machine here.
    settings["ANGARIUM_LAKE__START_DELAY_MS"] = "3600000"
    output = tmp_path / "output"
    with RoleProcess(["up", "--json"], settings, ready_lines=UP_ROLES), output.open("wb") as file:
        script = f"\necho '{MARK}'\n".join([f"set -e\n{path}", *typed, top, stop])
        shell = LeashedProcess(
            ["bash", "-c", script],
            cwd=tmp_path,
            env={**os.environ, **settings},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            code = shell.wait(SECONDS_MAX)
        finally:
            shell.close()
    assert code == 0, output.read_text()
    printed = output.read_text().split(f"{MARK}\n")[1:]
    for page, wanted, found in zip(modules, shown, printed[: len(modules)], strict=True):
        for line in wanted.splitlines():
            assert line in found.splitlines(), f"{page}: {found}"
