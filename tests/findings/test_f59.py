"""F59: what failed shows where an operator looks first."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard.browser import browser, opened
from tests.dashboard.harness import APP, DEADLINE_S, PIPELINE, environment
from tests.kit.eventually import wait_until
from tests.kit.roles import RoleProcess
from tests.kit.server import ServerProcess

expect.set_options(timeout=40_000)
ROLES = ["api", "conversations", "node"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ServerProcess(aof=True) as server:
        env = environment(server, f"t{secrets.token_hex(3)}:")
        arguments = ["serve", *ROLES, "--app", APP]
        with RoleProcess(arguments, env, ready_lines=len(ROLES), deadline_s=DEADLINE_S) as role:
            yield f"http://127.0.0.1:{role.port_of('api', 'http')}"


@pytest.fixture(scope="module")
def chrome(url: str) -> Iterator[Browser]:
    with browser() as found:
        yield found


def test_failed_transactions_are_a_notice_and_what_their_page_opens_on(
    url: str, chrome: Browser
) -> None:
    with opened(chrome, url) as page:
        transactions = page.get_by_role("link", name="Transactions: ").locator("circle")
        expect(transactions).to_have_class("state good")
        failed = [end(page, url, {"refused": True}) for _ in range(2)]
        succeeded = end(page, url, {"quick": True})
        expect(transactions).to_have_class("state warn")
        page.get_by_role("link", name="2 transactions failed lately").click()
        expect(page).to_have_url(f"{url}/#/transactions?status=failed")
    # Without the notice too: failures come before what runs or succeeded.
    with opened(chrome, f"{url}/#/transactions") as page:
        tab = page.get_by_role("navigation", name="Status").locator("[aria-current='true']")
        expect(tab).to_contain_text("failed")
        expect(tab.locator(".number")).to_have_text("2")
        rows = page.get_by_role("region", name="Transactions", exact=True)
        for id in failed:
            expect(rows.get_by_title(id)).to_be_visible()
        expect(rows.get_by_title(succeeded)).to_have_count(0)


def end(page: Page, url: str, data: dict[str, bool]) -> str:
    """The id of a transaction that has ended."""
    ask, path = page.context.request, f"{url}/v1/transactions"
    ask.put(f"{url}/v1/pipelines/payment", data=PIPELINE)
    id = ask.post(path, data={"pipeline": "payment", "data": data}).json()["id"]
    wanted = "failed" if "refused" in data else "success"
    assert ask.get(f"{path}/{id}?wait_s=20").json()["status"] == wanted
    return str(id)


def test_a_reply_that_no_process_can_send_is_trouble_and_says_why(
    url: str, chrome: Browser
) -> None:
    with opened(chrome, url) as page:
        conversations = page.get_by_role("link", name="Conversations: ").locator("circle")
        expect(conversations).to_have_class("state good")
        ask, path = page.context.request, f"{url}/v1/conversations"
        about = {"conversation_id": "anna", "request_id": "q", "origin": "chat"}
        assert ask.post(f"{path}/requests", data=about).status == 201
        reply = {**about, "response_id": "a", "sender": "fax", "payload": 1}
        del reply["origin"]
        assert ask.post(f"{path}/replies", data=reply).status == 202
        wait_until(lambda: ask.get(f"{path}?kind=replies").json()["needs"], DEADLINE_S)
        expect(conversations).to_have_class("state bad")
        page.get_by_role("link", name="1 reply waiting for a process with sender 'fax'").click()
        expect(page.get_by_role("region", name="Without a sender").first).to_contain_text("fax")
        page.get_by_role("link", name="anna").click()
        expect(page.locator(".reply")).to_contain_text("no process has its sender")
        assert ask.get(f"{url}/v1/dashboard").json()["rates"]["conversations.sent"] == 0
