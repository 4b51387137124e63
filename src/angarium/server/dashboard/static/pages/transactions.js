// Transactions: lists by status, webhooks with their next attempt, three levels of statistics.

import { get, part, post } from "../api.js";
import { chart } from "../charts.js";
import { deadLetters } from "../dead_letters.js";
import { h } from "../dom.js";
import { ago, ahead, at, brief, clock, count, duration, short, since } from "../format.js";
import { model } from "../model.js";
import { ask, badge, button, card, empty, heading, loading, pager, table, tiles, toast } from "../parts.js";
import { paged } from "../paging.js";
import { statusBadge, transaction } from "./transaction.js";

const STATUSES = ["queued", "running", "sleeping", "success", "failed", "aborted", "cancelled", "timeout", "internal-error"];
const LEVELS = [
  ["fine", "Last 5 minutes", "by 5 s", 5, 60], ["medium", "Last 2 hours", "by 100 s", 100, 72],
  ["coarse", "Last 24 hours", "by 1,000 s", 1_000, 87],
];
// Shown first, with their number: what an operator has to look at.
const ATTENTION = ["internal-error", "failed", "timeout", "aborted"];
const COUNTED_MAX = 50;
const COUNTED = [["started", "started"], ["completed", "ended"], ["dead", "dead letters"], ["cancelled", "cancelled"], ["expired", "timed out"]];
const href = (id) => `#/transactions/${encodeURIComponent(id)}`;

export function page({ rest, parameters, redraw }) {
  const id = rest.join("/");
  if (id) return transaction(id, redraw);
  const own = {
    status: STATUSES.includes(parameters.get("status")) ? parameters.get("status") : null, numbers: {},
    pipeline: parameters.get("pipeline") ?? "", watch: null, levels: {}, pipelines: [],
  };
  own.list = paged("/v1/transaction-list", "transactions", () => ({ status: own.status ?? "running", pipeline: own.pipeline }), redraw);
  own.dead = deadTransactions(redraw);
  own.hooks = paged("/v1/transaction-webhooks", "webhooks", () => ({}), redraw);
  return { load: () => load(own), view: () => view(own) };
}

/** How many need attention, and with the first look the list that opens. */
async function attention(own) {
  await Promise.all(ATTENTION.map(async (status) => {
    const found = await get("/v1/transaction-list", { status, pipeline: own.pipeline, limit: COUNTED_MAX });
    own.numbers[status] = `${count(found.transactions.length)}${found.next ? "+" : ""}`;
  }));
  const bad = ATTENTION.find((status) => own.numbers[status] !== "0");
  own.status ??= bad ?? (model.facts.transactions?.running ? "running" : model.facts.transactions?.queued ? "queued" : "success");
}

const numberOf = (own, status) => own.numbers[status]
  ?? (model.facts.transactions?.[status] === undefined ? null : count(model.facts.transactions[status]));

async function load(own) {
  await attention(own);
  const levels = Promise.all(LEVELS.map(async ([name]) => {
    own.levels[name] = await get("/v1/transaction-statistics", { level: name });
  }));
  const known = get("/v1/pipelines").then((answer) => { own.pipelines = answer.pipelines.map((one) => one.name).sort(); });
  [own.watch] = await Promise.all([get("/v1/transaction-watch", { elders: 5 }), own.list.load(), own.dead.load(), own.hooks.load(), levels, known]);
}

function view(own) {
  const metrics = model.facts.transactions;
  return [
    heading("Transactions", "Nodes run the steps of pipelines. Each accepted transaction ends exactly once."),
    tiles(["Queued", count(metrics.queued), model.modules.transactions.oldestMs === null ? null : `first waits ${duration(model.modules.transactions.oldestMs)}`],
      ["Running", count(metrics.running)], ["Sleeping", count(metrics.sleeping)], ["Webhooks due", count(metrics.webhooks)],
      ["To archive", count(metrics.to_archive)], ["Dead letters", count(metrics.dead), null, metrics.dead ? "warn" : ""],
      ["Nodes", count(metrics.nodes), metrics.silent_nodes ? `${count(metrics.silent_nodes)} silent` : null, metrics.silent_nodes ? "warn" : ""]),
    statistics(own),
    own.dead.view(),
    listCard(own),
    webhooks(own),
    own.watch?.awaited_steps.length ? awaitedSteps(own.watch) : null,
    own.watch ? h("div", { class: "grid", key: "watch" }, nodes(own.watch), longestRunning(own.watch)) : null,
  ];
}

function deadTransactions(redraw) {
  return deadLetters({
    path: "/v1/transactions/dead", title: "Dead letters", note: "a step failed too often; retrying continues with this step", redraw,
    first: { label: "Id", cell: (row) => h("a", { href: href(row.id), class: "mono", title: row.id }, brief(row.id)), class: "nowrap" },
    reason: (row) => badge(row.reason, "warn"), dropped: "is archived as failed and can't be retried.",
    columns: () => [
      { label: "Pipeline", cell: (row) => row.pipeline, class: "wrap" },
      { label: "Step", cell: (row) => count(row.step), number: true },
      { label: "Details", cell: (row) => row.note, class: "wrap soft" }],
    more: (row, change) => [
      button("With new data", () => rerun(row, change), "small", { "aria-label": `Retry ${row.id} with new data` })],
  });
}

async function rerun(row, change) {
  const text = await ask("Retry with new data", "The step that failed gets this JSON instead of its data.", "Retry", "New data");
  if (text === null) return;
  let data;
  try {
    data = JSON.parse(text);
  } catch (error) {
    toast("This is no JSON", String(error), true);
    return;
  }
  await change(() => post(`/v1/transactions/${part(row.id)}/rerun`, { data }), `${brief(row.id)} is queued again`);
}

function listCard(own) {
  const tabs = h("nav", { class: "tabs", "aria-label": "Status" }, STATUSES.map((status) =>
    h("a", { href: address(status, own.pipeline), "aria-current": String(status === own.status) }, status,
      numberOf(own, status) ? h("span", { class: `number ${ATTENTION.includes(status) && numberOf(own, status) !== "0" ? "bad" : ""}` }, numberOf(own, status)) : null)));
  const pick = h("label", { class: "soft" }, "Pipeline ",
    h("select", { on: { change: (event) => { location.hash = address(own.status, event.target.value); } } },
      h("option", { value: "" }, "all"), own.pipelines.map((name) => h("option", { value: name, selected: name === own.pipeline }, name))));
  return card("List", { actions: pick, body: tabs }, own.status && own.list.read ? rows(own) : loading(), pager(own.list, "transactions"));
}

const address = (status, pipeline) => `#/transactions?status=${status}${pipeline ? `&pipeline=${encodeURIComponent(pipeline)}` : ""}`;

function rows(own) {
  if (!own.list.rows.length && !own.list.next)
    return own.pipelines.length
      ? empty("transactions", `No transaction is ${own.status}`, "Start one, or look at another status.", `angarium transactions start ${own.pipelines[0]} --data '{}'`)
      : empty("transactions", "No pipeline is known yet", "A pipeline names the steps; nodes run the functions you decorate with @app.step().", "angarium pipeline load payment.toml");
  return table("Transactions", [
    { label: "Id", cell: (row) => h("a", { href: href(row.id), class: "mono", title: row.id }, brief(row.id)), class: "nowrap" },
    { label: "Status", cell: (row) => statusBadge(row.status) },
    { label: "Pipeline", cell: (row) => row.pipeline, class: "wrap" },
    { label: "Step", cell: (row) => count((row.step ?? 0) + 1), number: true },
    { label: "Owner", cell: (row) => row.owner, class: "wrap" },
    { label: "Details", cell: (row) => whatNow(row), class: "wrap soft" },
    { label: "Started", cell: (row) => h("span", { title: at(row.created_ms) }, ago(row.created_ms)), number: true },
  ], own.list.rows, (row) => row.id);
}

function whatNow(row) {
  if (row.status === "running") return row.node ? `at ${row.node} for ${duration(clock.now() - row.updated_ms)}` : "";
  if (row.status === "sleeping") return `${row.switch ? `waits for switch ${row.switch}, ` : ""}wakes ${ahead(row.wake_ms)}`;
  if (row.completed_ms) return `took ${duration(row.completed_ms - row.created_ms)}${row.note ? `: ${row.note}` : ""}`;
  if (row.waits_for_step) return `waiting for a node with step '${row.waits_for_step}' for ${duration(clock.now() - row.updated_ms)}`;
  return `waits ${duration(clock.now() - row.updated_ms)}`;
}

function statistics(own) {
  return h("div", { class: "grid three", key: "statistics" }, LEVELS.map(([name, title, note, seconds, intervals]) => {
    const found = own.levels[name];
    return card(title, { note, key: name, body: found ? bars(title, found.intervals, seconds, intervals, own.pipeline) : loading() });
  }));
}

function bars(title, found, seconds, intervals, pipeline) {
  const newest = Math.floor(clock.now() / 1000 / seconds) * seconds;
  const starts = Array.from({ length: intervals }, (_, at) => newest - (intervals - 1 - at) * seconds);
  const known = new Map(found.map((one) => [one.start_s, pipeline ? (one.pipelines[pipeline] ?? {}) : one.all]));
  const series = COUNTED.map(([event, name]) => ({ name, values: starts.map((start) => known.get(start)?.[event] ?? 0) }))
    .filter(({ values }, number) => number < 2 || values.some(Boolean));
  return chart({ title, kind: "bars", times: starts.map((start) => start * 1000), series, width: 340, height: 150, unit: short });
}

function webhooks(own) {
  if (!own.hooks.read) return loading();
  if (!own.hooks.rows.length)
    return card("Webhooks", { body: empty("transactions", "No webhook is due", "A failed webhook is listed here with the reason and the time of its next attempt.") });
  return card("Webhooks", { note: "the next attempt first", table: table("Webhooks", [
    { label: "Transaction", cell: (row) => h("a", { href: href(row.transaction_id), class: "mono", title: row.transaction_id }, brief(row.transaction_id)), class: "nowrap" },
    { label: "Receiver", cell: (row) => row.url, class: "wrap" },
    { label: "Tries", cell: (row) => count(row.tries), number: true },
    { label: "Next try", cell: (row) => h("span", { title: at(row.next_ms) }, ahead(row.next_ms)), class: "nowrap" },
    { label: "Last problem", cell: (row) => row.error ?? "", class: "wrap soft" },
  ], own.hooks.rows, (row) => row.transaction_id) }, pager(own.hooks, "webhooks"));
}

function nodes(watch) {
  if (!watch.nodes.length)
    return card("Nodes", { body: empty("transactions", "No node runs", "Transactions wait in their queue until a node starts.", "angarium serve node --app module:app") });
  return card("Nodes", { table: table("Nodes", [
    { label: "Node", cell: (row) => row.node, class: "wrap" },
    { label: "State", cell: (row) => badge(row.alive ? "alive" : "silent", row.alive ? "good" : "warn") },
    { label: "Last heartbeat", cell: (row) => since(row.silent_ms), number: true },
  ], watch.nodes, (row) => row.node) });
}

function awaitedSteps(watch) {
  return card("Awaited steps", { note: "transactions that wait for a node with this step", key: "awaited", table: table("Awaited steps", [
    { label: "Step type", cell: (row) => row.step_type, class: "wrap" },
    { label: "Node group", cell: (row) => row.node_group, class: "wrap" },
    { label: "Transactions", cell: (row) => count(row.transactions), number: true },
    { label: "First waits", cell: (row) => duration(row.waiting_ms), number: true },
  ], watch.awaited_steps, (row) => `${row.node_group}|${row.step_type}`) });
}

function longestRunning(watch) {
  if (!watch.elders.length)
    return card("Running longest", { body: empty("transactions", "Nothing runs", "The transactions that have been running longest are listed here.") });
  return card("Running longest", { table: table("Running longest", [
    { label: "Id", cell: (row) => h("a", { href: href(row.transaction_id), class: "mono", title: row.transaction_id }, brief(row.transaction_id)), class: "nowrap" },
    { label: "Pipeline", cell: (row) => row.pipeline, class: "wrap" },
    { label: "For", cell: (row) => duration(row.age_ms), number: true },
  ], watch.elders, (row) => row.transaction_id) });
}
