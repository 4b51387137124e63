"""Every page and every action in a real Chromium, against real roles.

Ids and payloads contain markup; each test fails if any of it is executed.
"""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard.browser import SIZES, Theme, opened
from tests.dashboard.conftest import SystemWithData
from tests.dashboard.harness import MARKUP

expect.set_options(timeout=40_000)


def address_of(filled: SystemWithData, name: str) -> str:
    data = filled.data
    return {
        "overview": "#/",
        "dispatch": "#/dispatch",
        "message": f"#/dispatch/{data.dead[0]}",
        "routing": "#/routing",
        "conversations": "#/conversations",
        "conversation": f"#/conversations/{quote(data.conversation, safe='')}",
        "pickup": "#/pickup",
        "connection": f"#/pickup/{quote(data.connection, safe='')}",
        "transactions": "#/transactions?status=sleeping",
        "transaction": f"#/transactions/{data.sleeping}",
        "lake": "#/lake",
        "search": f"#/search?id={data.ended}",
    }[name]


# A text that each page shows when it has loaded.
SEEN = {
    "overview": "Processes",
    "dispatch": "Newest results",
    "message": "Failures",
    "routing": "Dead deliveries",
    "conversations": "Waiting",
    "conversation": "Queue",
    "pickup": "Live sessions",
    "connection": "Queue",
    "transactions": "Webhooks",
    "transaction": "Time line",
    "lake": "The lake has not run yet",
    "search": "History",
}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", list(SIZES))
def test_each_page_fits_the_screen_and_can_be_read(
    filled: SystemWithData, chrome: Browser, size: str, theme: Theme
) -> None:
    with opened(chrome, filled.url, size=size, theme=theme) as page:
        for name, seen in SEEN.items():
            page.goto(f"{filled.url}/{address_of(filled, name)}")
            expect(page.locator("main").get_by_text(seen, exact=True).first).to_be_visible()
            assert page.evaluate(WIDER) <= 0, f"{name} is wider than the screen"
            assert page.evaluate(CUT) <= 0, f"the link to {name} is not quite on the screen"
            assert page.evaluate(UNREADABLE) == [], name
            assert page.screenshot().startswith(b"\x89PNG")


WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
CUT = """() => {
  const link = document.querySelector(".nav [aria-current]")?.getBoundingClientRect();
  return link ? Math.max(-link.left, link.right - innerWidth) : 0;
}"""
# Every text against the nearest runtime behind it: a contrast below 4.5 (3 for large letters).
UNREADABLE = """() => {
  const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const numbers = (colour) => {
    paint.clearRect(0, 0, 1, 1);
    paint.fillStyle = colour;
    paint.fillRect(0, 0, 1, 1);
    return [...paint.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const runtime = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const found = numbers(getComputedStyle(at).backgroundColor);
      if (found[3] > 250) return found;
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || element.closest("svg, .sr, .skip") || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const [a, b] = [light(numbers(style.color)), light(runtime(element))].sort((x, y) => y - x);
    const large = parseFloat(style.fontSize) >= 18.6;
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < (large ? 3 : 4.5)) bad.push(`${element.textContent.slice(0, 40)}: ${contrast}`);
  }
  return bad;
}"""


def test_the_overview_shows_modules_rates_notices_and_processes(
    filled: SystemWithData, chrome: Browser
) -> None:
    with opened(chrome, filled.url) as page:
        for module in ("Dispatch", "Routing", "Transactions", "Conversations", "Pickup"):
            expect(page.locator(".flow-diagram").get_by_text(module, exact=True)).to_be_visible()
        expect(page.get_by_role("link", name=re.compile(r"^Pickup: 1 queue,"))).to_be_visible()
        expect(page.locator("[data-edge='dispatch.accepted']")).to_be_visible()
        expect(page.get_by_role("link", name="3 dead letters")).to_be_visible()
        for role in ("dispatcher", "gateway", "node", "relay"):
            expect(page.get_by_role("cell", name=role, exact=True)).to_be_visible()
        page.get_by_role("link", name="3 dead letters").click()
        expect(page.get_by_role("heading", name="Dispatch", exact=True)).to_be_visible()


def test_a_message_shows_its_result_or_its_failures_with_the_traceback(
    filled: SystemWithData, chrome: Browser
) -> None:
    with opened(chrome, f"{filled.url}/#/dispatch") as page:
        results = page.get_by_role("region", name="Newest results").first
        results.get_by_role("link").first.click()
        expect(page.get_by_role("region", name="Result", exact=True)).to_contain_text("true")
        expect(page.get_by_role("region", name="History")).to_contain_text("completed")
        page.goto(f"{filled.url}/#/dispatch/{filled.data.dead[0]}")
        failures = page.get_by_role("region", name="Failures")
        expect(failures).to_contain_text(MARKUP)
        expect(failures.locator("pre")).to_contain_text('raise ValueError(message["fail"])')
        expect(page.get_by_role("region", name="Payload")).to_contain_text(MARKUP)
        history = page.get_by_role("region", name="History")
        expect(history).to_contain_text("rejected")
        expect(history).not_to_contain_text("raise ValueError")
        page.goto(f"{filled.url}/#/search?id={filled.data.dead[0]}")
        page.get_by_role("link", name="Open").first.click()
        expect(page.get_by_role("heading", name="Message")).to_be_visible()
        page.goto(f"{filled.url}/#/dispatch/00000000-0000-4000-8000-000000000000")
        expect(page.get_by_text("is not queued, pending or dead")).to_be_visible()


def test_a_dead_letter_is_retried_and_one_is_dropped(
    filled: SystemWithData, chrome: Browser
) -> None:
    kept, retried, dropped = filled.data.dead
    with opened(chrome, f"{filled.url}/#/dispatch") as page:
        letters = page.get_by_role("region", name="Dead letters", exact=True).first
        expect(letters.get_by_text(MARKUP).first).to_be_visible()
        letters.get_by_role("button", name=f"Retry {retried}").click()
        expect(page.locator(".toast")).to_contain_text("is queued again")
        letters.get_by_role("button", name=f"Drop {dropped}").click()
        page.get_by_role("dialog").get_by_role("button", name="Leave it").click()
        expect(letters.get_by_role("button", name=f"Drop {dropped}")).to_be_visible()
        letters.get_by_role("button", name=f"Drop {dropped}").click()
        page.get_by_role("dialog").get_by_role("button", name="Drop").click()
        expect(page.get_by_text("is dropped")).to_be_visible()
        expect(letters.get_by_role("button", name=f"Drop {dropped}")).to_have_count(0)
        expect(letters.get_by_role("button", name=f"Retry {kept}")).to_be_visible()


def test_a_failed_action_shows_the_error_and_a_hint(
    filled: SystemWithData, chrome: Browser
) -> None:
    letter = filled.data.dead[0]
    with opened(chrome, f"{filled.url}/#/dispatch") as page:
        button = page.get_by_role("button", name=f"Drop {letter}")
        expect(button).to_be_visible()
        # Another client drops it, and the page has not reloaded yet.
        page.context.route("**/v1/dispatch/dead?*", lambda route: route.abort())
        removed = page.context.request.delete(f"{filled.url}/v1/dispatch/dead/{letter}")
        assert removed.status == 204
        button.click()
        page.get_by_role("dialog").get_by_role("button", name="Drop").click()
        alert = page.get_by_role("alert").filter(has_text="there is no dead letter")
        expect(alert).to_contain_text("Somebody has seen to it already")


def test_keys_and_owners_are_shown_and_dead_deliveries_are_retried(
    filled: SystemWithData, chrome: Browser
) -> None:
    with opened(chrome, f"{filled.url}/#/routing") as page:
        expect(page.get_by_role("cell", name="live", exact=True)).to_be_visible()
        page.get_by_label("Who owns a key?").fill(filled.data.key)
        page.get_by_role("button", name="Look it up").click()
        expect(page.get_by_role("definition").filter(has_text=filled.data.key)).to_be_visible()
        page.get_by_label("Who owns a key?").fill("nobody-knows-me")
        page.get_by_role("button", name="Look it up").click()
        expect(
            page.get_by_text("no message for 'nobody-knows-me' waits, and no instance owns the key")
        ).to_be_visible()
        page.get_by_role("button", name="Rebalance keys").click()
        expect(page.get_by_text("spread evenly already")).to_be_visible()
        deliveries = page.get_by_role("region", name="Dead deliveries", exact=True).first
        deliveries.get_by_role("button", name="Retry all", exact=True).click()
        page.get_by_role("dialog").get_by_role("button", name="Retry").click()
        expect(page.get_by_text("1 queued again")).to_be_visible()


def test_dead_inbound_messages_are_retried(filled: SystemWithData, chrome: Browser) -> None:
    with opened(chrome, f"{filled.url}/#/routing") as page:
        title = "Inbound messages that no instance could handle"
        messages = page.get_by_role("region", name=title, exact=True).first
        rows = messages.get_by_role("row").filter(has_text="no wallet for this key")
        expect(rows).to_have_count(2)
        rows.first.get_by_role("button", name="Retry").first.click()
        expect(page.get_by_text("is queued again")).to_be_visible()
        expect(rows).to_have_count(1)
        messages.get_by_role("button", name="Retry all", exact=True).click()
        page.get_by_role("dialog").get_by_role("button", name="Retry").click()
        expect(page.get_by_text("1 queued again")).to_be_visible()
        expect(page.get_by_text(title)).to_have_count(0)


def test_dead_transactions_are_retried_with_new_data_or_all_of_a_reason_and_dropped(
    filled: SystemWithData, chrome: Browser
) -> None:
    with opened(chrome, f"{filled.url}/#/transactions") as page:
        ask, body = page.context.request, {"pipeline": "payment", "data": {"broken": True}}
        path = f"{filled.url}/v1/transactions"
        mended, *others = [ask.post(path, data=body).json()["id"] for _ in range(3)]
        letters = page.get_by_role("region", name="Dead letters", exact=True).first
        for id in (mended, *others):
            expect(letters.get_by_role("button", name=f"Drop {id}")).to_be_visible()
        letters.get_by_role("button", name=f"Retry {mended} with new data").click()
        page.get_by_role("dialog").get_by_label("New data").fill('{"quick": true}')
        page.get_by_role("dialog").get_by_role("button", name="Retry").click()
        expect(letters.get_by_role("button", name=f"Drop {mended}")).to_have_count(0)
        assert ask.get(f"{path}/{mended}?wait_s=20").json()["status"] == "success"
        alike = f"Retry all with the reason of {others[0]}"
        letters.get_by_role("button", name=alike).click()
        expect(page.get_by_role("dialog")).to_contain_text("DoNotRetry")
        page.get_by_role("dialog").get_by_role("button", name="Retry").click()
        expect(page.get_by_text("2 queued again")).to_be_visible()
        for id in others:
            letters.get_by_role("button", name=f"Drop {id}").click()
            page.get_by_role("dialog").get_by_role("button", name="Drop").click()
            expect(letters.get_by_role("button", name=f"Drop {id}")).to_have_count(0)


def test_text_being_typed_survives_a_refresh(filled: SystemWithData, chrome: Browser) -> None:
    with opened(chrome, f"{filled.url}/#/routing") as page:
        field = page.get_by_label("Who owns a key?")
        field.fill("half a key")
        for _ in range(3):
            with page.expect_response("**/v1/routing/keys?*"):
                pass
        expect(field).to_have_value("half a key")
        expect(field).to_be_focused()


def test_a_conversation_shows_its_queue_in_order_with_reasons(
    filled: SystemWithData, chrome: Browser
) -> None:
    with opened(chrome, f"{filled.url}/#/conversations") as page:
        page.get_by_role("link", name=filled.data.conversation).click()
        requests = page.locator(".queue > li")
        expect(requests).to_have_count(3)
        expect(requests.nth(0)).to_contain_text("sent, its ACK is waited for")
        expect(requests.nth(1)).to_contain_text("no reply yet")
        expect(requests.nth(2)).to_contain_text("waits for reply r1-a")
        page.get_by_role("link", name="Conversations", exact=True).click()
        page.get_by_role("link", name="Requests without a reply").click()
        expect(page.get_by_role("link", name=filled.data.conversation)).to_be_visible()


def test_dead_replies_are_retried_alone_or_all_of_a_reason_and_dropped(
    filled: SystemWithData, chrome: Browser
) -> None:
    reasons = {"d1": "busy", "d2": "busy", "d3": f"no such client {MARKUP}", "d4": "gone"}
    with opened(chrome, f"{filled.url}/#/conversations") as page:
        ask, path = page.context.request, f"{filled.url}/v1/conversations"
        for id, reason in reasons.items():
            body = {"conversation_id": id, "request_id": f"r-{id}", "origin": "chat"}
            assert ask.post(f"{path}/requests", data=body).status == 201
            sent = {**body, "response_id": id, "payload": {"refused": reason}}
            assert ask.post(f"{path}/replies", data=sent).status == 202
        replies = page.get_by_role("region", name="Dead replies", exact=True).first
        for id, reason in reasons.items():
            row = replies.get_by_role("row").filter(has=page.get_by_label(f"Drop {id}"))
            expect(row).to_contain_text(reason)
            expect(row.get_by_role("link", name=id)).to_be_visible()
        replies.get_by_role("button", name="Retry all with the reason of d1").click()
        expect(page.get_by_role("dialog")).to_contain_text("busy")
        page.get_by_role("dialog").get_by_role("button", name="Retry").click()
        expect(page.get_by_text("2 queued again")).to_be_visible()
        expect(replies.get_by_role("row")).to_have_count(3)  # with that of the titles
        replies.get_by_role("button", name="Retry d3", exact=True).click()
        expect(page.get_by_text("d3 is queued again")).to_be_visible()
        replies.get_by_role("button", name="Drop d4").click()
        page.get_by_role("dialog").get_by_role("button", name="Drop").click()
        expect(page.get_by_text("Dead replies")).to_have_count(0)


def test_a_connections_queue_is_shown_and_emptied(filled: SystemWithData, chrome: Browser) -> None:
    with opened(chrome, f"{filled.url}/#/pickup") as page:
        expect(page.get_by_text("Nobody is connected")).to_be_visible()
        page.get_by_role("link", name=filled.data.connection).click()
        expect(page.get_by_role("definition").filter(has_text="offline")).to_be_visible()
        page.get_by_role("button", name="Remove all messages").click()
        page.get_by_role("dialog").get_by_role("button", name="Remove them").click()
        expect(page.get_by_text("3 messages removed")).to_be_visible()
        expect(page.get_by_text("has no messages and no session")).to_be_visible()


def test_a_transaction_shows_its_time_line_and_a_switch_wakes_it(
    filled: SystemWithData, chrome: Browser
) -> None:
    with opened(chrome, f"{filled.url}/#/transactions?status=sleeping") as page:
        for title in (
            "Last 5 minutes: started",
            "Last 2 hours: started [4-9]",
            "Last 24 hours: started [4-9]",
        ):
            expect(page.get_by_role("img", name=re.compile(f"^{title}"))).to_be_visible()
        hooks = page.get_by_role("region", name="Webhooks", exact=True).first
        expect(hooks.get_by_text("http://127.0.0.1:9/hook")).to_be_visible()
        expect(hooks.get_by_text(re.compile(r"^(in \d|any moment)"))).to_be_visible()
        page.get_by_role("link", name=re.compile("^01")).first.click()
        expect(page.locator(".steps .now")).to_contain_text("await-bank")
        time_line = page.get_by_role(
            "img", name=re.compile("^Time line: queued .*, running .*, sleeping")
        )
        expect(time_line).to_be_visible()
        expect(page.get_by_text(f"order-{MARKUP}")).to_be_visible()
        expect(page.get_by_role("definition").filter(has_text=own_trace(page))).to_be_visible()
        expect(page.get_by_label("Switch", exact=True)).to_have_value("bank")
        page.get_by_label("Value").fill(MARKUP)
        page.get_by_role("button", name="Set it").click()
        expect(page.locator("main .badge", has_text="success").first).to_be_visible()
        expect(page.locator(".steps .done")).to_have_count(3)


def own_trace(page: Page) -> re.Pattern[str]:
    """What a transaction that nobody's trace began has: the first digits of its id."""
    return re.compile(f"^{page.url.rsplit('/', 1)[1][:32]}$")


def test_a_sleeping_transaction_is_cancelled(filled: SystemWithData, chrome: Browser) -> None:
    with opened(chrome, filled.url) as page:
        body = {"pipeline": "payment", "data": {"amount": 1}}
        made = page.context.request.post(f"{filled.url}/v1/transactions", data=body).json()
        page.goto(f"{filled.url}/#/transactions/{made['id']}")
        expect(page.locator("main .badge", has_text="sleeping").first).to_be_visible()
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel it").click()
        expect(page.locator("main .badge", has_text="cancelled").first).to_be_visible()
        expect(page.get_by_role("button", name="Cancel")).to_have_count(0)


def test_any_id_is_found_with_its_history(filled: SystemWithData, chrome: Browser) -> None:
    with opened(chrome, filled.url) as page:
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        page.keyboard.press("/")
        page.keyboard.type(filled.data.failed)
        page.keyboard.press("Enter")
        history = page.locator(".history li")
        expect(history.first).to_contain_text("started")
        expect(history.last).to_contain_text("the card was refused")
        page.get_by_role("link", name="Open").click()
        expect(page.locator(".steps .stopped")).to_contain_text("charge-card")
        page.goto(f"{filled.url}/#/search?id=nobody-knows-me")
        expect(page.get_by_role("heading", name="Not found")).to_be_visible()


@pytest.mark.parametrize("name", ["nowhere", "constructor"])
def test_an_unknown_address_leads_to_the_overview(
    filled: SystemWithData, chrome: Browser, name: str
) -> None:
    with opened(chrome, f"{filled.url}/#/{name}") as page:
        expect(page.locator("main").get_by_text("Processes", exact=True).first).to_be_visible()


def test_the_theme_is_chosen_and_remembered(filled: SystemWithData, chrome: Browser) -> None:
    with opened(chrome, filled.url, theme="light") as page:
        page.get_by_role("button", name="Theme: as the system").click()
        page.get_by_role("button", name="Theme: light").click()
        page.reload()
        expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 17, 22)"


def test_everything_can_be_reached_by_keyboard(filled: SystemWithData, chrome: Browser) -> None:
    with opened(chrome, f"{filled.url}/#/dispatch") as page:
        expect(page.get_by_role("heading", name="Dispatch", exact=True)).to_be_visible()
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        reached = set()
        for _ in range(40):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.textContent.trim().slice(0, 20)"))
        for name in ("Overview", "Dispatch", "Lake", "Retry"):
            assert any(each.startswith(name) for each in reached), name
