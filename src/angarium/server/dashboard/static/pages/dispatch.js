// Dispatch: partitions with their leaders, workers, pending messages, dead letters.

import { get, part, post, remove } from "../api.js";
import { h } from "../dom.js";
import { ago, at, brief, bytes, count, duration, pretty } from "../format.js";
import { model } from "../model.js";
import { act, badge, button, card, confirm, empty, heading, loading, pager, table, tiles } from "../parts.js";
import { paged } from "../paging.js";

export function page({ redraw }) {
  const letters = paged("/v1/dispatch/dead", "letters", () => ({}), redraw);
  const own = { status: null, letters, redraw };
  return {
    async load() {
      [own.status] = await Promise.all([get("/v1/dispatch"), letters.load()]);
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
    own.status ? members(own.status) : null,
    deadLetters(own),
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
    card("Workers", { note: workers.length ? `${count(workers.length)} of them report as role worker` : null, body: registered }),
    card("Dispatchers", { body: dispatchers }));
}

function deadLetters(own) {
  const { letters } = own;
  if (!letters.read) return loading();
  if (!letters.rows.length && letters.page === 1)
    return card("Dead letters", { body: empty("dispatch", "No dead letters",
      "A message that failed all its deliveries is listed here with the reasons, until you retry or discard it.") });
  return card("Dead letters", { note: "oldest first; retrying makes a message pending again", table: table("Dead letters", [
    { label: "Message", cell: (row) => h("a", { href: `#/search?id=${encodeURIComponent(row.message_id)}`, class: "mono", title: row.message_id }, brief(row.message_id)), class: "nowrap" },
    { label: "Died", cell: (row) => h("span", { title: at(row.at_ms) }, ago(row.at_ms)), class: "nowrap" },
    { label: "Tries", cell: (row) => count(row.deliveries), number: true },
    { label: "Reason", cell: reasons, class: "wrap" },
    { label: "Payload", cell: payload, class: "wrap" },
    { label: "", cell: (row) => h("div", { class: "actions" },
      button("Retry", () => retry(own, row), "small", { disabled: row.payload === null, "aria-label": `Retry ${row.message_id}` }),
      button("Discard", () => discard(own, row), "small danger", { "aria-label": `Discard ${row.message_id}` })) },
  ], letters.rows, (row) => row.message_id) }, pager(letters, "letters"));
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

async function retry(own, row) {
  await act(() => post(`/v1/dispatch/dead/${part(row.message_id)}/retry`), `Message ${brief(row.message_id)} is pending again`);
  await again(own);
}

async function discard(own, row) {
  const sure = await confirm("Discard this message for good?", `${row.message_id} is removed with its payload. This can't be undone.`, "Discard");
  if (!sure) return;
  await act(() => remove(`/v1/dispatch/dead/${part(row.message_id)}`), `Message ${brief(row.message_id)} is discarded`);
  await again(own);
}

async function again(own) {
  await own.letters.load().catch(() => {});
  own.redraw();
}
