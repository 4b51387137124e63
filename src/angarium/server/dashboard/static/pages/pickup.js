// Pickup: live sessions at the gateways, queues of offline recipients, one connection.

import { get, part, query, remove } from "../api.js";
import { h } from "../dom.js";
import { ago, bytes, count, duration, many } from "../format.js";
import { model } from "../model.js";
import { act, badge, button, card, confirm, empty, facts, heading, loading, pager, table, tiles } from "../parts.js";
import { paged } from "../paging.js";

const href = (row) => `#/pickup/${encodeURIComponent(row.connection_id)}?tenant=${encodeURIComponent(row.tenant)}`;

export function page({ rest, parameters, redraw }) {
  const id = rest.join("/");
  if (id) return one(id, parameters.get("tenant") ?? "default", redraw);
  const own = { module: null, queues: paged("/v1/pickup/queues", "queues", () => ({}), redraw),
    sessions: paged("/v1/pickup/sessions", "queues", () => ({}), redraw) };
  return {
    async load() {
      [own.module] = await Promise.all([get("/v1/pickup"), own.queues.load(), own.sessions.load()]);
    },
    view: () => view(own),
  };
}

function view(own) {
  const metrics = model.facts.pickup;
  const open = (event) => {
    const form = new FormData(event.target);
    location.hash = href({ connection_id: form.get("id").trim(), tenant: form.get("tenant").trim() || "default" });
  };
  return [
    heading("Pickup", "Messages go to a live session at once. For an offline recipient they wait in Redis, later in the database."),
    tiles(["Live sessions", count(metrics.sessions)], ["Queues", count(metrics.queues), "with messages in Redis"],
      ["Longest wait", duration(model.modules.pickup.oldestMs)], ["In the database", own.module ? count(own.module.archived) : "–", own.module ? bytes(own.module.archived_bytes) : null],
      ["Moving to the database", count(metrics.moving)], ["Pushes due", count(metrics.pushes)]),
    gateways(own),
    card("Find a connection", { body: h("form", { class: "form", on: { submit: open } },
      h("label", { class: "grow" }, "Connection", h("input", { name: "id", required: true, placeholder: "Connection id", spellcheck: "false" })),
      h("label", {}, "Tenant", h("input", { name: "tenant", placeholder: "default", spellcheck: "false" })),
      h("button", { type: "submit" }, "Show")) }),
    card("Live sessions", {}, own.sessions.read ? list(own.sessions, "Live sessions",
      empty("pickup", "Nobody is connected", "A recipient opens a live session at a gateway; its messages then arrive at once.", "examples/pickup_mediator")) : loading()),
    card("Queues", { note: "the longest waiting first" }, own.queues.read ? list(own.queues, "Queues",
      empty("pickup", "No message waits", "Messages for an offline recipient wait here until they are picked up.")) : loading()),
  ];
}

function gateways(own) {
  if (!own.module) return loading();
  if (!own.module.gateways.length)
    return card("Gateways", { body: empty("pickup", "No gateway has run yet", "Recipients connect to one by WebSocket.", "angarium serve gateway") });
  return card("Gateways", { table: table("Gateways", [
    { label: "Gateway", cell: (row) => row.gateway, class: "wrap" },
    { label: "State", cell: (row) => badge(row.live ? "live" : "gone", row.live ? "good" : "warn") },
    { label: "Sessions", cell: (row) => count(row.sessions), number: true },
  ], own.module.gateways, (row) => row.gateway) });
}

function list(pages, label, none) {
  if (!pages.rows.length && pages.page === 1) return none;
  return [table(label, [
    { label: "Connection", cell: (row) => h("a", { class: "mono", href: href(row) }, row.connection_id), class: "wrap" },
    { label: "Tenant", cell: (row) => row.tenant, class: "wide" },
    { label: "State", cell: state },
    { label: "Waiting", cell: (row) => count(row.pending), number: true },
    { label: "Sent", cell: (row) => (row.sending ? `${count(row.sending)} unacknowledged` : ""), number: true },
    { label: "In the database", cell: (row) => (row.archived ? count(row.archived) : ""), number: true },
    { label: "Size", cell: (row) => bytes(row.bytes), number: true },
    { label: "Oldest", cell: (row) => (row.oldest_ms ? ago(row.oldest_ms) : "–"), number: true },
  ], pages.rows, (row) => `${row.tenant}:${row.connection_id}`), pager(pages, "connections")];
}

const state = (row) => (row.live ? badge("live", "good") : badge("offline"));

function one(id, tenant, redraw) {
  const own = { found: null, problem: null };
  const load = async () => {
    try {
      [own.found, own.problem] = [await get(`/v1/pickup/connections/${part(id)}`, { tenant }), null];
    } catch (error) {
      if (error.status !== 404 && error.status !== 400) throw error;
      own.problem = error;
    }
  };
  const drain = async () => {
    const sure = await confirm("Remove every message of this connection?", `${many(own.found.pending + own.found.sending, "message")} of ${id} will be removed for good, including those in the database.`, "Remove them");
    if (!sure) return;
    await act(() => remove(`/v1/pickup/connections/${part(id)}${query({ tenant })}`), (answer) => `${many(answer.removed, "message")} removed`);
    await load().catch(() => {});
    redraw();
  };
  return {
    load,
    view: () => [
      heading(h("span", {}, "Connection ", h("span", { class: "mono wrap" }, id)), null,
        h("a", { class: "button", href: "#/pickup" }, "All connections"),
        h("a", { class: "button", href: `#/search?id=${encodeURIComponent(id)}` }, "Its history")),
      own.problem ? card("Nothing waits", { body: empty("pickup", own.problem.message, "A connection is shown from its first message or session on.") })
        : own.found ? connection(own.found, drain) : loading(),
    ],
  };
}

function connection(found, drain) {
  return card("Queue", { actions: button("Remove all messages", drain, "danger"), body: facts(
    ["Session", found.live ? h("span", {}, badge("live", "good"), ` ${found.session} at ${found.gateway}`) : badge("offline")],
    ["Waiting", count(found.pending)], ["Sent", `${count(found.sending)} not acknowledged yet`],
    ["In the database", count(found.archived)], ["Size", bytes(found.bytes)],
    ["Oldest", found.oldest_ms ? ago(found.oldest_ms) : "–"], ["Tenant", found.tenant]) });
}
