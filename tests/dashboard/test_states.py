"""The dashboard when things are not as they should be: no token, Redis away, very long lists."""

from __future__ import annotations

import json
import secrets
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, expect

from tests.dashboard.browser import browser, chromium, opened
from tests.dashboard.harness import PIPELINE, environment
from tests.kit.roles import RoleProcess
from tests.kit.server import ServerProcess

expect.set_options(timeout=40_000)
ROWS = 10_000
PLACES = (
    "#/dispatch", "#/routing", "#/transactions", "#/conversations", "#/pickup", "#/lake", "#/",
)  # fmt: skip


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as found:
        yield found


@contextmanager
def api(**more: str) -> Iterator[tuple[ServerProcess, str]]:
    """Run the role api alone; yields its server and URL."""
    with ServerProcess(aof=True) as server:
        env = environment(server, f"t{secrets.token_hex(3)}:", **more)
        with RoleProcess(["serve", "api"], env, deadline_s=60) as role:
            yield server, f"http://127.0.0.1:{role.ports['http']}"


def test_a_banner_says_that_redis_is_away_and_the_page_recovers(chrome: Browser) -> None:
    with api() as (server, url), opened(chrome, url) as page:
        expect(page.get_by_text("Live", exact=True)).to_be_visible()
        server.kill()
        expect(page.get_by_role("alert")).to_contain_text("Redis is away")
        expect(page.get_by_text("Not live")).to_be_visible()
        for place in PLACES:
            page.goto(f"{url}/{place}")
            expect(page.get_by_role("alert")).to_contain_text("Redis is away")
        server.restart()
        expect(page.get_by_role("alert")).to_have_count(0)
        expect(page.get_by_text("Live", exact=True)).to_be_visible()
        for place in PLACES:
            page.goto(f"{url}/{place}")
            expect(page.locator("main .card").first).to_be_visible()
            expect(page.get_by_role("alert")).to_have_count(0)


def test_a_banner_says_that_the_api_does_not_answer_and_the_page_recovers(chrome: Browser) -> None:
    with ServerProcess(aof=True) as server:
        env = environment(server, f"t{secrets.token_hex(3)}:")
        with RoleProcess(["serve", "api"], env, deadline_s=60) as role:
            env["ANGARIUM_HTTP__PORT"] = str(role.ports["http"])
            with opened(chrome, f"http://127.0.0.1:{role.ports['http']}") as page:
                expect(page.get_by_text("Live", exact=True)).to_be_visible()
                role.kill()
                expect(page.get_by_role("alert")).to_contain_text("does not answer")
                with RoleProcess(["serve", "api"], env, deadline_s=60):
                    expect(page.get_by_role("alert")).to_have_count(0)
                    expect(page.get_by_text("Live", exact=True)).to_be_visible()


def test_the_page_asks_for_a_token_and_stores_it_in_the_tab(chrome: Browser) -> None:
    tokens = "admin:ang_master,read:ang_looker"
    with api(ANGARIUM_HTTP__TOKENS=tokens) as (_, url), opened(chrome, url) as page:
        expect(page.get_by_role("heading", name="This Angarium wants a token")).to_be_visible()
        page.get_by_label("Token").fill("ang_wrong")
        page.get_by_role("button", name="Enter").click()
        expect(page.get_by_role("alert")).to_contain_text("does not know this token")
        page.get_by_label("Token").fill("ang_looker")
        page.get_by_role("button", name="Enter").click()
        expect(page.get_by_text("Live", exact=True)).to_be_visible()
        page.goto(f"{url}/#/routing")
        page.get_by_role("button", name="Rebalance keys").click()
        said = page.get_by_role("alert")
        expect(said).to_contain_text("scope 'write'")
        expect(said).to_contain_text("Use one with the scope that is named")
        page.reload()
        expect(page.get_by_text("Live", exact=True)).to_be_visible()
        assert page.evaluate("localStorage.length + document.cookie.length") == 0
        page.get_by_role("button", name="Forget the token").click()
        expect(page.get_by_label("Token")).to_be_visible()


def test_an_empty_page_names_the_next_command(chrome: Browser) -> None:
    nothing_yet = {
        "": "angarium up module:app",
        "#/dispatch": "angarium serve worker --app module:app",
        "#/routing": "angarium serve inbox --app module:app",
        "#/conversations": "POST /v1/conversations/requests",
        "#/pickup": "angarium serve gateway",
        "#/transactions": "angarium pipeline load payment.toml",
        "#/lake": "angarium lake run --once",
    }
    with api() as (_, url), opened(chrome, url) as page:
        for place, command in nothing_yet.items():
            page.goto(f"{url}/{place}")
            expect(page.locator(".command", has_text=command)).to_be_visible()


def test_ten_thousand_rows_come_in_pages(chrome: Browser) -> None:
    with api() as (_, url):
        put(f"{url}/v1/pipelines/payment", PIPELINE, "PUT")
        many = [{"pipeline": "payment"}] * 1_000
        for _ in range(ROWS // len(many)):
            put(f"{url}/v1/transactions/batch", {"transactions": many}, "POST")
        with opened(chrome, f"{url}/#/transactions?status=queued") as page:
            rows = page.get_by_role("region", name="Transactions", exact=True).locator("tbody tr")
            expect(rows).to_have_count(50)
            expect(page.get_by_role("definition").filter(has_text="10,000")).to_be_visible()
            first = rows.first.inner_text()
            page.get_by_role("button", name="Next page").click()
            expect(page.get_by_text("Page 2, 50 transactions")).to_be_visible()
            assert rows.first.inner_text() != first
            page.get_by_role("button", name="First page").click()
            expect(page.get_by_text("Page 1, 50 transactions")).to_be_visible()


def put(url: str, body: object, method: str) -> None:
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status < 300


def test_a_missing_chromium_is_reported_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Exception, match="sudo apt-get install -y chromium"):
        chromium()
