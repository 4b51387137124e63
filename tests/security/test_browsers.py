"""Pages of strangers in a browser on this machine, and scripts in the dashboard's own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.dashboard.browser import TIMEOUT_MS, browser
from tests.kit.roles import RoleProcess
from tests.pickup.harness import gateway, sqlite
from tests.security.wire import api, handshake, request, said
from tests.security.wire import status_of as status

MESSAGE = b'{"payload":{"n":1}}'


ASKED: list[tuple[dict[str, str], bool]] = [
    ({}, True),
    ({"Host": "localhost:8400"}, True),
    ({"Host": "[::1]:8400"}, True),
    ({"Host": "127.0.0.1:8400", "Origin": "http://127.0.0.1:8400"}, True),
    # A name of the page's own server, which now leads to this machine.
    ({"Host": "rebound.example:8400"}, False),
    ({"Host": "rebound.example:8400", "Origin": "http://rebound.example:8400"}, False),
    ({"Host": "127.0.0.1.example"}, False),
    ({"Host": "evil@127.0.0.1:8400"}, True),  # no browser can say this
    # A page of the web that posts here without asking, as a form may.
    ({"Origin": "https://evil.example", "Content-Type": "text/plain"}, False),
    ({"Origin": "null", "Content-Type": "text/plain"}, False),
    ({"Origin": "http://127.0.0.1.evil.example"}, False),
    ({"Origin": "http://[bad"}, False),
]


async def test_an_api_without_tokens_answers_no_page_of_another_host(
    redis_url: str, no_settings: object
) -> None:
    async with api(redis_url) as (_, port):
        for headers, taken in ASKED:
            answer = await said(port, request("POST /v1/messages", headers, MESSAGE))
            assert status(answer) == (202 if taken else 403), headers
            assert b"access-control-allow" not in answer.lower()
            read = await said(port, request("GET /metrics", headers))
            assert status(read) == (200 if taken else 403), headers


async def test_with_tokens_a_page_may_be_anywhere_but_has_to_show_one(
    redis_url: str, no_settings: object
) -> None:
    async with api(redis_url, http={"tokens": ["write:t"]}) as (_, port):
        page = {"Host": "angarium.example", "Origin": "https://evil.example"}
        assert status(await said(port, request("POST /v1/messages", page, MESSAGE))) == 401
        # A browser adds cookies by itself; they are not looked at.
        cookie = {**page, "Cookie": "token=t; Authorization=Bearer t"}
        assert status(await said(port, request("POST /v1/messages", cookie, MESSAGE))) == 401
        shown = {**page, "Authorization": "Bearer t"}
        assert status(await said(port, request("POST /v1/messages", shown, MESSAGE))) == 202


async def test_a_gateway_without_tokens_answers_no_page_of_another_host(
    redis_url: str, tmp_path: Path
) -> None:
    async with gateway(redis_url, sqlite(tmp_path)) as service:
        port = service.ports["gateway"]
        assert status(await said(port, handshake({"Origin": "https://evil.example"}))) == 403
        assert status(await said(port, handshake({"Host": "rebound.example"}))) == 403
    async with gateway(redis_url, sqlite(tmp_path), tokens=["t:s"]) as service:
        port = service.ports["gateway"]
        assert status(await said(port, handshake({"Origin": "https://evil.example"}))) == 401


async def test_every_page_says_what_may_run_in_it_and_who_may_frame_it(
    redis_url: str, no_settings: object
) -> None:
    async with api(redis_url) as (_, port):
        asked = {"Accept": "text/html"}
        for path in ("/", "/assets/app.js", "/assets/icon.svg"):
            head = (await said(port, request(f"GET {path}", asked))).partition(b"\r\n\r\n")[0]
            assert status(head) == 200
            for wanted in (b"default-src 'self'", b"frame-ancestors 'none'", b"nosniff"):
                assert wanted in head, path


@pytest.fixture
def stranger() -> Iterator[str]:
    """The URL of a page on another origin, which tries what a page can."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<body></body>")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        # Another name than the API's, so that it is another site to the browser.
        yield f"http://stranger.localhost:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def chrome() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoleProcess]:
    home = tmp_path_factory.mktemp("home")
    settings = {
        "ANGARIUM_HOME": str(home),
        "ANGARIUM_HTTP__PORT": "0",
        "ANGARIUM_PICKUP__PORT": "0",
        "ANGARIUM_DISPATCH__ACK_PORT": "0",
    }
    with RoleProcess(["serve", "api", "gateway", "dispatcher"], settings, ready_lines=3) as role:
        yield role


ATTACK = """async ([api, gateway]) => {
  const outcome = {};
  const tried = async (name, act) => {
    try { outcome[name] = await act(); } catch (error) { outcome[name] = "refused"; }
  };
  const body = JSON.stringify({payload: {stolen: true}});
  await tried("read", async () => (await fetch(api + "/v1/processes")).status);
  await tried("post", async () => (await fetch(api + "/v1/messages", {
    method: "POST", mode: "no-cors", headers: {"content-type": "text/plain"}, body})).type);
  await tried("put", async () => (await fetch(api + "/v1/pipelines/p", {
    method: "PUT", headers: {"content-type": "application/json"}, body: "{}"})).status);
  await tried("socket", () => new Promise((done, failed) => {
    const socket = new WebSocket(gateway);
    socket.onopen = () => done("open");
    socket.onerror = failed;
  }));
  await tried("frame", () => new Promise((done) => {
    const frame = document.createElement("iframe");
    frame.src = api + "/";
    frame.onload = () => done(frame.contentDocument === null ? "closed" : "open");
    document.body.append(frame);
  }));
  return outcome;
}"""


def test_a_page_of_a_stranger_in_a_real_browser_gets_nothing_done(
    served: RoleProcess, chrome: Browser, stranger: str
) -> None:
    api_url = f"http://127.0.0.1:{served.ports['http']}"
    context = chrome.new_context()
    context.set_default_timeout(TIMEOUT_MS)
    page = context.new_page()
    page.goto(stranger)
    gateway_url = f"ws://127.0.0.1:{served.ports['gateway']}/"
    outcome = page.evaluate(ATTACK, [api_url, gateway_url])
    # `opaque`: sent, and the page may not see that it was refused.
    assert outcome["read"] == outcome["put"] == outcome["socket"] == "refused"
    assert outcome["post"] in ("opaque", "refused")
    assert outcome["frame"] == "closed"
    answer = context.request.get(f"{api_url}/v1/dispatch")
    assert json.loads(answer.text())["partitions"][0]["inbox"] == 0
    context.close()


def test_a_script_that_got_into_a_page_would_not_run(served: RoleProcess, chrome: Browser) -> None:
    """Should a line of ours ever forget to think of it, the policy is the second wall."""
    page = chrome.new_page()
    page.goto(f"http://127.0.0.1:{served.ports['http']}/")
    page.evaluate(
        """() => {
        const box = document.createElement("div");
        box.innerHTML = "<img src=x onerror='window.hurt=1'>";
        const script = document.createElement("script");
        script.textContent = "window.hurt=2";
        document.body.append(box, script);
        return new Promise((done) => setTimeout(done, 300));
    }"""
    )
    assert page.evaluate("window.hurt") is None
    page.close()
