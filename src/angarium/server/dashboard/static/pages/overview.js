// The overview: flow diagram, notices, rates of the last minutes, processes.

import { h } from "../dom.js";
import { flowDiagram, MODULES } from "../flow.js";
import { ago, count, rate } from "../format.js";
import { chart } from "../charts.js";
import { model } from "../model.js";
import { badge, card, empty, heading, table } from "../parts.js";

const NARROW = matchMedia("(max-width: 700px)");
const RATES = [
  ["dispatch.accepted", "Messages accepted"], ["transactions.completed", "Transactions ended"],
  ["conversations.sent", "Replies sent"], ["pickup.delivered", "Messages picked up"],
];
// The metrics shown for a process, by role.
const SHOWN_METRICS = {
  dispatcher: ["partitions_led", "pending", "redelivered", "workers"],
  worker: ["completed", "in_hand", "failed"], relay: ["queued", "connections"],
  inbox: ["handled", "keys_in_hand", "dead"], deliverer: ["delivered", "in_hand"],
  gateway: ["clients", "sessions", "delivered"], conversations: ["sent", "acknowledged", "awaited"],
  node: ["running", "taken", "steps"], webhooks: ["delivered", "failed"], archiver: ["archived"],
};

export function page() {
  return { view };
}

function view() {
  return [
    heading("Overview", "Waiting work in each module, and how fast it moves."),
    notices(),
    h("section", { class: "card", "aria-label": "Flow", key: "flow" },
      h("div", { class: "body" }, flowDiagram(model, NARROW.matches))),
    h("div", { class: "grid", key: "charts" }, throughput(), waiting()),
    processes(),
  ];
}

function notices() {
  if (!model.notices.length) return null;
  return h("ul", { class: "notices", "aria-label": "Needs attention", key: "notices" },
    model.notices.map((one) => h("li", { class: `notice ${one.level}`, key: one.module + one.text },
      h("a", { href: `#/${one.page || one.module}` }, one.text), h("span", {}, one.hint))));
}

function throughput() {
  const { times, rates } = model.history;
  return card("Throughput", { note: "per second, the last minutes", body: chart({
    title: "Throughput", times, unit: rate, width: NARROW.matches ? 340 : 500,
    series: RATES.map(([edge, name]) => ({ name, values: rates[edge] ?? [] })),
  }) });
}

function waiting() {
  const { times, waiting: values } = model.history;
  return card("Waiting", { note: "in each module", body: chart({
    title: "Waiting", times, width: NARROW.matches ? 340 : 500,
    series: Object.entries(MODULES).map(([name, text]) => ({ name: text, values: values[name] ?? [] })),
  }) });
}

function processes() {
  const rows = model.processes;
  if (!rows.length)
    return card("Processes", { body: empty("overview", "No role has reported yet",
      "Roles report every three seconds. Start all of them in one process, with your application if you have one.",
      "angarium up module:app") });
  return card("Processes", { note: `${count(rows.length)} roles report`, table: table("Processes", [
    { label: "Role", cell: (row) => badge(row.role, "accent") },
    { label: "Host", cell: (row) => row.host, class: "wrap wide" },
    { label: "Process", cell: (row) => String(row.pid), class: "wide" },
    { label: "Metrics", cell: (row) => metricsText(row), class: "soft" },
    { label: "Last report", cell: (row) => ago(row.at_ms), number: true },
  ], rows, (row) => `${row.role}@${row.actor}`) });
}

function metricsText(row) {
  return (SHOWN_METRICS[row.role] ?? Object.keys(row.figures).slice(0, 3))
    .filter((name) => row.figures[name] !== undefined)
    .map((name) => `${name.replaceAll("_", " ")} ${formatted(row.figures[name])}`)
    .join(" · ");
}

const formatted = (value) => (typeof value === "number" ? count(value) : value);
