// Dispatch: partitions with their leaders, workers, pending messages, dead letters.

import { get } from "../api.js";
import { deadLetters } from "../dead_letters.js";
import { h } from "../dom.js";
import { ago, at, brief, bytes, count, duration, pretty } from "../format.js";
import { model } from "../model.js";
import { badge, card, empty, heading, loading, table, tiles } from "../parts.js";
import { message } from "./message.js";

const RESULTS_SHOWN = 10;
const href = (id) => `#/dispatch/${encodeURIComponent(id)}`;

export function page({ rest, redraw }) {
  const id = rest.join("/");
  if (id) return message(id, redraw);
  const dead = deadLetters({
    path: "/v1/dispatch/dead", title: "Dead letters", note: "oldest first; retrying makes a message pending again", redraw,
    none: ["dispatch", "No dead letters", "A message that failed all its deliveries is listed here with the reasons, until you retry or drop it."],
    first: { label: "Message", cell: (row) => h("a", { href: href(row.id), class: "mono", title: row.id }, brief(row.id)), class: "nowrap" },
    columns: (rows) => [
      ...(rows.some((row) => row.queue) ? [{ label: "Queue", cell: (row) => row.queue || "–", class: "wrap" }] : []),
      { label: "Payload", cell: payload, class: "wrap" }],
    reason: reasons, usable: (row) => row.payload !== null,
    // The reason begins with the worker's name, which differs.
    alike: (row) => row.reason.slice(row.reason.indexOf(": ") + 1).trim(),
  });
  const own = { status: null, results: null, dead };
  return {
    async load() {
      [own.status, own.results] = await Promise.all([
        get("/v1/dispatch"), get("/v1/dispatch/results", { limit: RESULTS_SHOWN }), dead.load()]);
    },
    view: () => view(own),
  };
}

function view(own) {
  const facts = model.facts.dispatch;
  return [
    heading("Dispatch", "Messages from the channel and the durable intake are sent to workers until one completes them."),
    tiles(["Pending", count(facts.pending), "accepted, not done"], ["Intake", count(facts.inbox), "not accepted yet"],
      ["Oldest", duration(model.modules.dispatch.oldestMs), "since last sent"], ["Workers", count(facts.consumers)],
      ["Results", count(facts.processed), "in the stream"],
      ["Dead letters", count(facts.dead), null, facts.dead ? "warn" : ""]),
    own.status ? partitions(own.status) : loading(),
    own.status ? queues(own.status) : null,
    own.status ? members(own.status) : null,
    own.dead.view(),
    own.results ? results(own.results.results) : null,
  ];
}

function partitions(status) {
  return card("Partitions", { note: "one dispatcher leads a partition at a time; each new leader has a higher term", table: table("Partitions", [
    { label: "Partition", cell: (row) => count(row.partition) },
    { label: "Leader", cell: (row) => row.leader ?? badge("no leader", row.pending + row.inbox ? "bad" : ""), class: "wrap" },
    { label: "Term", cell: (row) => count(row.term), number: true },
    { label: "Pending", cell: (row) => count(row.pending), number: true },
    { label: "Oldest", cell: (row) => (row.pending ? duration(row.oldest_ms) : "–"), number: true },
    { label: "Intake", cell: (row) => count(row.inbox), number: true },
    { label: "Results", cell: (row) => count(row.processed), number: true },
    { label: "Dead", cell: (row) => (row.dead ? badge(count(row.dead), "warn") : "0"), number: true },
  ], status.partitions, (row) => row.partition) });
}

function queues(status) {
  if (!status.queues.length) return null;
  return card("Named queues", { note: "messages wait until a worker of their queue has a free slot", table: table("Named queues", [
    { label: "Queue", cell: (row) => h("span", { class: "mono" }, row.queue), class: "wrap" },
    { label: "Waiting", cell: (row) => count(row.waiting), number: true },
    { label: "Oldest", cell: (row) => (row.waiting ? duration(row.oldest_ms) : "–"), number: true },
    { label: "Workers", cell: (row) => (row.workers ? count(row.workers) : badge("no worker", row.waiting ? "bad" : "")), number: true },
  ], status.queues, (row) => row.queue) });
}

function members(status) {
  const workers = model.processes.filter((process) => process.role === "worker");
  const registered = status.consumers.length
    ? h("ul", {}, status.consumers.map((name) => h("li", { class: "mono", key: name }, name)))
    : empty("dispatch", "No worker is registered",
      "Messages wait until a worker starts. It runs the function you decorate with @app.worker().",
      "angarium serve worker --app module:app");
  const dispatchers = status.dispatchers.length
    ? h("ul", {}, status.dispatchers.map((name) => h("li", { class: "mono wrap", key: name }, name)))
    : empty("dispatch", "No dispatcher runs", "Messages on the channel are lost; the durable intake stores its messages.",
      "angarium serve dispatcher");
  return h("div", { class: "grid", key: "members" },
    card("Workers", { note: workers.length ? `${count(workers.length)} with a report of the role worker` : null, body: registered }),
    card("Dispatchers", { body: dispatchers }));
}

function results(rows) {
  if (!rows.length)
    return card("Newest results", { body: empty("dispatch", "No result yet",
      "Send a message to a worker and wait for its result.", "angarium publish --wait '{\"name\": \"Xerxes\"}'") });
  return card("Newest results", { note: "what workers returned", table: table("Newest results", [
    { label: "Message", cell: (row) => h("a", { href: href(row.message_id), class: "mono", title: row.message_id }, brief(row.message_id)), class: "nowrap" },
    { label: "Finished", cell: (row) => h("span", { title: at(row.at_ms) }, ago(row.at_ms)), class: "nowrap" },
    { label: "Worker", cell: (row) => h("span", { class: "mono" }, row.consumer), class: "wrap" },
    { label: "Result", cell: (row) => Object.entries(row.result).map(([name, text]) => `${name}: ${text}`).join(" · ") || h("span", { class: "faint" }, "nothing"), class: "wrap" },
  ], rows, (row) => row.message_id) });
}

function reasons(row) {
  if (!row.reasons.length) return h("span", { class: "faint" }, "no reason given");
  const last = row.reasons.at(-1);
  if (row.reasons.length === 1) return last;
  return h("details", {}, h("summary", {}, last), h("ul", {}, row.reasons.map((one) => h("li", {}, one))));
}

function payload(row) {
  if (row.payload === null) return h("span", { class: "faint" }, "gone from Redis");
  const note = row.payload_encoding === "base64" ? " as base64" : "";
  return h("details", {}, h("summary", {}, `${bytes(row.payload_bytes)}${note}`),
    h("pre", {}, pretty(row.payload), row.payload_cut ? "\n…" : ""));
}
