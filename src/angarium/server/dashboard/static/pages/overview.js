// The whole building: flow, what needs an eye, rates over the last minutes, processes.

import { h } from "../dom.js";
import { building, MODULES } from "../flow.js";
import { ago, count, rate } from "../format.js";
import { chart } from "../charts.js";
import { model } from "../model.js";
import { badge, card, empty, heading, table } from "../parts.js";

const NARROW = matchMedia("(max-width: 700px)");
const RATES = [
  ["dispatch.accepted", "Messages accepted"], ["transactions.completed", "Transactions ended"],
  ["conversations.sent", "Replies sent"], ["pickup.delivered", "Messages picked up"],
];
// What a process tells of itself that says most, by role.
const TELLING = {
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
    heading("Overview", "Every module of the building, what waits in it and how fast it moves."),
    notices(),
    h("section", { class: "card", "aria-label": "Flow", key: "flow" },
      h("div", { class: "body" }, building(model, NARROW.matches))),
    h("div", { class: "grid", key: "charts" }, throughput(), waiting()),
    processes(),
  ];
}

function notices() {
  if (!model.notices.length) return null;
  return h("ul", { class: "notices", "aria-label": "Needs an eye", key: "notices" },
    model.notices.map((one) => h("li", { class: `notice ${one.level}`, key: one.module + one.text },
      h("a", { href: `#/${one.module}` }, one.text), h("span", {}, one.hint))));
}

function throughput() {
  const { times, rates } = model.history;
  return card("Throughput", { note: "per second, the last minutes", body: chart({
    title: "Throughput", times, unit: rate, width: NARROW.matches ? 340 : 500,
    series: RATES.map(([joint, name]) => ({ name, values: rates[joint] ?? [] })),
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
      "Roles report every three seconds. Start all of them in one process, with functions of your own if you have some.",
      "angarium up module:app") });
  return card("Processes", { note: `${count(rows.length)} roles report`, table: table("Processes", [
    { label: "Role", cell: (row) => badge(row.role, "accent") },
    { label: "Host", cell: (row) => row.host, class: "wrap wide" },
    { label: "Process", cell: (row) => String(row.pid), class: "wide" },
    { label: "Figures", cell: (row) => telling(row), class: "soft" },
    { label: "Heard of", cell: (row) => ago(row.at_ms), number: true },
  ], rows, (row) => `${row.role}@${row.actor}`) });
}

function telling(row) {
  return (TELLING[row.role] ?? Object.keys(row.figures).slice(0, 3))
    .filter((name) => row.figures[name] !== undefined)
    .map((name) => `${name.replaceAll("_", " ")} ${figure(row.figures[name])}`)
    .join(" · ");
}

const figure = (value) => (typeof value === "number" ? count(value) : value);
