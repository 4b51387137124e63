"""The role `webhooks`: sends a request to a client's URL when a transaction ends or progresses.

One process has the role at a time, and sends many webhooks concurrently. Redis schedules the next
attempt when it leases a webhook, so a crash loses none. Results are reported with the next request
for work. A receiver that is slow, fails or never stops answering costs one attempt.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial

import msgspec
from prometheus_client import Counter as Metric

from angarium.runtime import process_report
from angarium.runtime.application import Application
from angarium.runtime.errors import AngariumError, SettingInvalid
from angarium.runtime.lease import GrantStatus
from angarium.runtime.outbound import Outbound
from angarium.runtime.runtime import Runtime
from angarium.runtime.service import Loop, Service
from angarium.runtime.settings import CommonSettings
from angarium.runtime.text import valid_text
from angarium.runtime.trace import TRACEPARENT, Trace, trace_in_payload, trace_of_id
from angarium.runtime.tracing import Values
from angarium.runtime.urls import redacted
from angarium.transactions.compat import webhook_body
from angarium.transactions.errors import NameInvalid
from angarium.transactions.leases import (
    DueWebhook,
    HolderState,
    TransactionLeases,
    WebhookAlert,
    WebhookResult,
)
from angarium.transactions.model import check_name
from angarium.transactions.settings import TransactionsSettings
from angarium.transactions.signatures import (
    Signer,
    SigningKeyInvalid,
    ed25519_signer,
    headers_of,
    hmac_signer,
)

POLL_S = 0.25
# The pause between two requests for the role while another process has it.
ROLE_WAIT_S = 1.0
PROBLEM_CHARACTERS_MAX = 300

NOTICES = Metric(
    "angarium_webhook_notices",
    "Alerts to the administrator: webhooks given up, URLs disabled.",
    ["what"],
)


def check(settings: CommonSettings, app: Application) -> None:
    signers_of(settings)
    owner_signers_of(settings)


def build(runtime: Runtime, app: Application) -> Service:
    return WebhookSender(runtime)


def host_of(url: str) -> str:
    """As webhooks_to_process.lua reads it."""
    return re.split(r"[/?#]", url.partition("://")[2], maxsplit=1)[0]


def owner_signers_of(settings: CommonSettings) -> dict[str, list[Signer]]:
    """Owner → signers, for owners with their own secret."""
    found: dict[str, list[Signer]] = {}
    for each in settings.group(TransactionsSettings).webhook_secrets:
        owner, _, secret = each.get_secret_value().partition("=")
        try:
            found.setdefault(check_name(owner, "owner"), []).append(hmac_signer(secret))
        except (SigningKeyInvalid, NameInvalid) as error:
            setting = "ANGARIUM_TRANSACTIONS__WEBHOOK_SECRETS"
            raise SettingInvalid(setting, str(error), "use owner=whsec_… for each") from None
    return found


def signers_of(settings: CommonSettings) -> list[Signer]:
    signers = []
    given = settings.group(TransactionsSettings)
    for name, value, make in (
        ("SECRET", given.webhook_secret, hmac_signer),
        ("PRIVATE_KEY", given.webhook_private_key, ed25519_signer),
    ):
        if value is not None:
            try:
                signers.append(make(value.get_secret_value()))
            except SigningKeyInvalid as error:
                setting = f"ANGARIUM_TRANSACTIONS__WEBHOOK_{name}"
                raise SettingInvalid(setting, str(error), "make a new key") from None
    return signers


@dataclass(frozen=True)
class WebhookPass:
    leased: int
    again: bool = False


class WebhookSender(Service):
    def __init__(self, runtime: Runtime) -> None:
        super().__init__("webhooks", clock=runtime.clock)
        self._runtime = runtime
        self._settings = runtime.settings.group(TransactionsSettings)
        self._signers = signers_of(runtime.settings)
        self._owner_signers = owner_signers_of(runtime.settings)
        self._in_flight = Counter[str]()
        self._leases = TransactionLeases(runtime)
        self._reporter = process_report.ProcessReporter(runtime, "webhooks")
        self._partitions = range(runtime.settings.partitions)
        self._results: dict[int, list[WebhookResult]] = {p: [] for p in self._partitions}
        self._loops: list[Loop] = []
        self._sending: dict[int, set[asyncio.Task[None]]] = {p: set() for p in self._partitions}
        self._tasks = asyncio.TaskGroup()
        self._tasks_ready = asyncio.Event()
        self._outbound: Outbound | None = None
        self._delivered = self._failed_count = self._given_up = self._disabled = 0
        self._grant = "none"

    async def on_start(self) -> None:
        self._outbound = Outbound(
            allow_private=self._runtime.settings.allow_private_addresses,
            timeout_s=self._settings.webhook_timeout_ms / 1000,
            limits=self._runtime.settings.limits,
        )
        self._tasks_ready.clear()
        self.spawn("sending", self._run_tasks)
        await self._tasks_ready.wait()
        self._loops = [
            self.loop(f"webhooks{p}", partial(self.run_once, p), POLL_S) for p in self._partitions
        ]
        self.loop("metrics", self._report, process_report.INTERVAL_S)

    async def run_once(self, partition: int) -> WebhookPass:
        """Report results, lease due webhooks, and start to send them."""
        # Each partition has a share, because the partitions are asked at the same time.
        share = max(1, self._settings.webhook_concurrency // len(self._partitions))
        sending = self._sending[partition]
        free = max(0, min(share, self._settings.webhook_concurrency - self._sending_count()))
        results = self._results[partition]
        self._results[partition] = []
        state: HolderState = "" if sending else "idle"
        try:
            batch = await self._leases.webhooks(
                partition, self._runtime.actor, results, free, state, self._in_flight
            )
        except BaseException:
            self._results[partition] = results + self._results[partition]
            raise
        self._grant = batch.grant.value
        for webhook in batch.webhooks:
            self._in_flight[host_of(webhook.url)] += 1
            task = self._tasks.create_task(self._send(partition, webhook))
            sending.add(task)
            task.add_done_callback(sending.discard)
        for alert in batch.alerts:
            self._alert_administrator(alert)
        if batch.grant is GrantStatus.REFUSED and not results:
            await self.clock.sleep(ROLE_WAIT_S)
        return WebhookPass(len(batch.webhooks), again=bool(self._results[partition]))

    async def on_stop(self) -> None:
        await self.passes_ended()
        if rest := set().union(*self._sending.values()):
            # The time-out bounds each request. Another process retries those that remain.
            await asyncio.wait(rest, timeout=self._settings.webhook_timeout_ms / 1000)
        for partition, results in self._results.items():
            state: HolderState = "" if self._sending[partition] else "leaving"
            await self._leases.webhooks(partition, self._runtime.actor, results, 0, state)
        await self._reporter.withdraw()

    async def on_close(self) -> None:
        if self._outbound is not None:
            await self._outbound.close()

    async def _run_tasks(self) -> None:
        async with asyncio.TaskGroup() as self._tasks:
            self._tasks_ready.set()
            await asyncio.Event().wait()

    async def _send(self, partition: int, webhook: DueWebhook) -> None:
        body = msgspec.json.encode(webhook_body(webhook.transaction))
        # All attempts of one webhook have the same id, so a receiver can drop repeats.
        id = f"{webhook.transaction.id}:{webhook.version}"
        transaction, tracing, began_ns = webhook.transaction, self._runtime.tracing, time.time_ns()
        trace = trace_in_payload(bytes(transaction.metadata)) or trace_of_id(transaction.id)
        own = trace if trace is None or tracing is None else trace.child()
        signers = self._owner_signers.get(transaction.owner, self._signers)
        try:
            problem = await self._post(webhook.url, id, body, signers, own)
        finally:
            host = host_of(webhook.url)
            self._in_flight[host] -= 1
            if self._in_flight[host] <= 0:
                del self._in_flight[host]
        if tracing is not None:
            values: Values = {"angarium.id": transaction.id, "angarium.attempt": webhook.attempt}
            tracing.record(
                "transactions webhook", trace, began_ns, values, kind="client", own=own,
                problem=problem,
            )  # fmt: skip
        if problem:
            self._failed_count += 1
            self.log.warning(
                "webhook_failed", transaction=webhook.transaction.id, attempt=webhook.attempt,
                problem=problem,
            )  # fmt: skip
        else:
            self._delivered += 1
        result = WebhookResult(webhook.transaction.id, webhook.version, problem)
        self._results[partition].append(result)
        self._loops[partition].wake()

    async def _post(
        self, url: str, id: str, body: bytes, signers: list[Signer], trace: Trace | None = None
    ) -> str:
        """The problem, or an empty text when the receiver accepted the request."""
        assert self._outbound is not None
        headers = headers_of(signers, id, int(time.time()), body)
        if trace is not None:
            headers = {**headers, TRACEPARENT: trace.header}
        try:
            answer = await self._outbound.send("POST", url, body, headers)
        except AngariumError as error:
            return valid_text(f"{error.code}: {error}")[:PROBLEM_CHARACTERS_MAX]
        except Exception as error:
            self.log.error("webhook_broke", error=repr(error), exc_info=error)
            return type(error).__name__
        return "" if answer.ok else f"status {answer.status}"

    def _alert_administrator(self, alert: WebhookAlert) -> None:
        NOTICES.labels(alert.what).inc()
        self._given_up += alert.what == "given_up"
        self._disabled += alert.what == "disabled"
        self.log.error(
            "webhook_notice", what=alert.what, url=redacted(alert.url),
            transaction=alert.transaction_id,
        )  # fmt: skip
        url = self._settings.webhook_admin_url
        if url is not None:
            self._tasks.create_task(self._post_alert(url, alert))

    async def _post_alert(self, url: str, alert: WebhookAlert) -> None:
        body = {"type": f"webhook.{alert.what}", "url": alert.url}
        if alert.transaction_id is not None:
            body["transactionId"] = alert.transaction_id
        id = f"notice:{alert.what}:{alert.transaction_id or time.time_ns()}"
        problem = await self._post(url, id, msgspec.json.encode(body), self._signers)
        if problem:
            self.log.error("administrator_not_told", problem=problem)

    def _sending_count(self) -> int:
        return sum(len(tasks) for tasks in self._sending.values())

    async def _report(self) -> None:
        report: dict[str, float | str] = {
            "delivered": self._delivered,
            "failed": self._failed_count,
            "given_up": self._given_up,
            "disabled": self._disabled,
            "sending": self._sending_count(),
            "grant": self._grant,
        }
        self.log.debug("metrics", **report)
        await self._reporter.report(report)
