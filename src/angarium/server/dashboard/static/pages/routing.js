// Routing: instances and their keys, queues, dead deliveries and dead inbound messages.

import { get, part, post } from "../api.js";
import { h } from "../dom.js";
import { ago, at, brief, count, duration, pretty } from "../format.js";
import { model } from "../model.js";
import { act, badge, button, card, confirm, empty, facts, heading, loading, pager, table, tiles } from "../parts.js";
import { paged } from "../paging.js";

export function page({ redraw }) {
  const keys = paged("/v1/routing/keys", "keys", () => ({}), redraw);
  const own = { instances: null, unowned: 0, dead: null, inbound: null, keys, shown: null, problem: "", redraw };
  return {
    async load() {
      const [instances, dead, inbound] = await Promise.all([get("/v1/routing/instances"), get("/v1/routing/dead"),
        get("/v1/routing/dead-inbound"), keys.load()]);
      [own.instances, own.unowned] = [instances.instances, instances.keys_without_owner];
      [own.dead, own.inbound] = [dead.letters, inbound.letters];
    },
    view: () => view(own),
  };
}

function view(own) {
  const metrics = model.facts.routing;
  const dead = metrics.dead_outbound + metrics.dead_inbound;
  return [
    heading("Routing", "Each recipient key belongs to one instance, which handles the key's messages in order.",
      button("Rebalance keys", () => rebalance(own))),
    tiles(["Instances", count(metrics.instances), metrics.silent ? `${count(metrics.silent)} silent` : "all report"],
      ["Keys", count(metrics.keys)], ["Keys with mail", count(metrics.keys_with_mail)],
      ["Without owner", count(metrics.unowned), null, metrics.unowned ? "bad" : ""],
      ["To deliver", count(metrics.outbound + metrics.in_hand), metrics.retrying ? `${count(metrics.retrying)} to retry` : null],
      ["Given up", count(dead), metrics.dead_inbound ? `${count(metrics.dead_inbound)} of them inbound` : null, dead ? "warn" : ""]),
    own.instances ? instances(own) : loading(),
    keyCard(own),
    deadDeliveries(own),
    deadInbound(own),
  ];
}

function instances(own) {
  if (!own.instances.length)
    return card("Instances", { body: empty("routing", "No instance is registered",
      "An instance runs the function you decorate with @app.inbox(). Messages for keys without an owner wait until one starts.",
      "angarium serve inbox --app module:app") });
  const most = Math.max(1, ...own.instances.map((row) => row.keys));
  return card("Instances", { note: "keys are assigned in turn, and move away from an instance whose heartbeat stops", table: table("Instances", [
    { label: "Instance", cell: (row) => h("span", { class: "mono", title: row.uid }, row.uid), class: "wrap" },
    { label: "State", cell: (row) => badge(row.live ? "live" : "silent", row.live ? "good" : "warn") },
    { label: "Keys", cell: (row) => count(row.keys), number: true },
    { label: "Share", cell: (row) => h("progress", { max: most, value: row.keys, "aria-label": `${row.keys} keys` }) },
    { label: "Mail", cell: (row) => (row.has_mail ? "waits" : "") },
    { label: "Last heartbeat", cell: (row) => (row.silent_ms === null ? "never" : `${duration(row.silent_ms)} ago`), number: true },
  ], own.instances, (row) => row.uid) });
}

function keyCard(own) {
  const find = async (event) => {
    const key = new FormData(event.target).get("key").trim();
    own.problem = "";
    own.shown = await get(`/v1/routing/keys/${part(key)}`).catch((error) => {
      own.problem = error.message;
      return null;
    });
    own.redraw();
  };
  const form = h("form", { class: "form", on: { submit: find } },
    h("label", { class: "grow" }, "Who owns a key?", h("input", { name: "key", required: true, placeholder: "Recipient key", spellcheck: "false" })),
    h("button", { type: "submit" }, "Look it up"));
  const shown = own.shown && facts(["Key", own.shown.recip_key], ["Owner", own.shown.uid ?? "nobody yet"],
    ["Waiting", count(own.shown.pending)], ["Partition", count(own.shown.partition)]);
  const list = own.keys.rows.length
    ? table("Keys and their owners", [
      { label: "Key", cell: (row) => h("a", { class: "mono", href: `#/search?id=${encodeURIComponent(row.recip_key)}`, title: row.recip_key }, brief(row.recip_key, 36)), class: "wrap" },
      { label: "Owner", cell: (row) => (row.uid ? h("span", { class: "mono", title: row.uid }, brief(row.uid)) : badge("nobody", "bad")), class: "wrap" },
      { label: "Owner's heartbeat", cell: (row) => (row.silent_ms === null ? "–" : `${duration(row.silent_ms)} ago`), class: "wide" },
      { label: "Waiting", cell: (row) => count(row.pending), number: true },
    ], own.keys.rows, (row) => row.recip_key)
    : empty("routing", "No key has an owner yet", "A key gets an owner when a relay accepts its first message.");
  return card("Keys", { note: "with their owners", body: [form, own.problem ? h("p", { class: "soft", role: "alert" }, own.problem) : null, shown] },
    list, pager(own.keys, "keys"));
}

function deadDeliveries(own) {
  if (!own.dead) return loading();
  if (!own.dead.length)
    return card("Dead deliveries", { body: empty("routing", "No delivery was given up",
      "A message that its receiver refused in all attempts is listed here with the reason.") });
  return card("Dead deliveries", { note: "the oldest first", actions: button("Retry all shown", () => revive(own)),
    table: table("Dead deliveries", [
      { label: "Given up", cell: (row) => h("span", { title: at(row.at_ms) }, ago(row.at_ms)), class: "nowrap" },
      { label: "Receiver", cell: (row) => receiver(row.message), class: "wrap" },
      { label: "Reason", cell: (row) => row.reason, class: "wrap" },
      { label: "Message", cell: (row) => h("details", {}, h("summary", {}, "Show"), h("pre", {}, pretty(row.message))) },
      { label: "", cell: (row) => (row.id ? h("div", { class: "actions" }, button("Retry", () => reviveOne(own, row))) : null) },
    ], own.dead, (row) => row.id + row.at_ms + row.message.length) });
}

function deadInbound(own) {
  if (!own.inbound?.length) return null;
  return card("Inbound messages that no instance could handle", { note: "the oldest first; the log of the role inbox has the details",
    actions: button("Retry all shown", () => reviveInbound(own)),
    table: table("Dead inbound messages", [
      { label: "Given up", cell: (row) => h("span", { title: at(row.at_ms) }, ago(row.at_ms)), class: "nowrap" },
      { label: "Key", cell: (row) => h("a", { class: "mono", href: `#/search?id=${encodeURIComponent(row.recip_key)}`, title: row.recip_key }, brief(row.recip_key, 36)), class: "wrap" },
      { label: "Reason", cell: (row) => row.reason, class: "wrap" },
      { label: "Message", cell: (row) => h("details", {}, h("summary", {}, "Show"), h("pre", {}, pretty(row.message))) },
      { label: "", cell: (row) => (row.id ? h("div", { class: "actions" }, button("Retry", () => reviveOneInbound(own, row))) : null) },
    ], own.inbound, (row) => row.id + row.at_ms) });
}

function receiver(message) {
  try {
    return JSON.parse(message).service.url;
  } catch {
    return h("span", { class: "faint" }, "can't be read");
  }
}

async function rebalance(own) {
  await act(() => post("/v1/routing/rebalance"), (answer) =>
    answer.moved ? `${count(answer.moved)} keys moved` : "The keys are spread evenly already");
  await again(own);
}

async function revive(own) {
  const sure = await confirm("Retry dead deliveries?", "Up to a hundred, the oldest first, go back to the queue and get all their attempts again.", "Retry");
  if (!sure) return;
  await act(() => post("/v1/routing/dead/revive"), (answer) => `${count(answer.revived)} queued again`);
  await again(own);
}

async function reviveOne(own, row) {
  await act(() => post(`/v1/routing/dead/${part(row.id)}/revive`), () => "Queued again");
  await again(own);
}

async function reviveInbound(own) {
  const sure = await confirm("Retry dead messages?", "Up to a hundred go to the instances that own their keys now, behind newer messages.", "Retry");
  if (!sure) return;
  await act(() => post("/v1/routing/dead-inbound/revive"), (answer) => `${count(answer.revived)} queued again`);
  await again(own);
}

async function reviveOneInbound(own, row) {
  await act(() => post(`/v1/routing/dead-inbound/${part(row.id)}/revive`), () => "Queued again");
  await again(own);
}

async function again(own) {
  const [dead, inbound] = await Promise.all(["dead", "dead-inbound"].map((list) => get(`/v1/routing/${list}`).catch(() => null)));
  if (dead) own.dead = dead.letters;
  if (inbound) own.inbound = inbound.letters;
  own.redraw();
}
