// Routing: instances and their keys, queues, dead deliveries and dead inbound messages.

import { get, part, post, remove } from "../api.js";
import { deadLetters } from "../dead_letters.js";
import { h } from "../dom.js";
import { brief, count, pretty, since } from "../format.js";
import { model } from "../model.js";
import { act, badge, button, card, confirm, empty, facts, heading, loading, pager, table, tiles } from "../parts.js";
import { paged } from "../paging.js";

const KEY = { label: "Key", cell: (row) => h("a", { class: "mono", href: `#/search?id=${encodeURIComponent(row.recip_key)}`, title: row.recip_key }, brief(row.recip_key, 36)), class: "wrap" };
const MESSAGE = { label: "Message", cell: (row) => h("details", {}, h("summary", {}, "Show"), h("pre", {}, pretty(row.message))) };

export function page({ redraw }) {
  const keys = paged("/v1/routing/keys", "keys", () => ({}), redraw);
  const [deliveries, inbound] = [deadDeliveries(redraw), deadInbound(redraw)];
  const own = { instances: null, unowned: 0, deliveries, inbound, keys, shown: null, problem: "", redraw };
  return {
    async load() {
      const [instances] = await Promise.all([get("/v1/routing/instances"), deliveries.load(), inbound.load(), keys.load()]);
      [own.instances, own.unowned] = [instances.instances, instances.keys_without_owner];
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
    tiles(["Instances", count(metrics.instances - metrics.retired), metrics.silent ? `${count(metrics.silent)} silent` : "all report"],
      ["Keys", count(metrics.keys)], ["Keys with mail", count(metrics.keys_with_mail)],
      ["Without owner", count(metrics.unowned), null, metrics.unowned ? "bad" : ""],
      ["To deliver", count(metrics.outbound + metrics.in_hand), metrics.retrying ? `${count(metrics.retrying)} to retry` : null],
      ["Given up", count(dead), metrics.dead_inbound ? `${count(metrics.dead_inbound)} of them inbound` : null, dead ? "warn" : ""]),
    own.instances ? instances(own) : loading(),
    keyCard(own),
    own.deliveries.view(),
    own.inbound.view(),
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
    { label: "State", cell: (row) => (row.retired && !row.live ? badge("retired") : badge(row.live ? "live" : "silent", row.live ? "good" : "warn")) },
    { label: "Keys", cell: (row) => count(row.keys), number: true },
    { label: "Share", cell: (row) => h("progress", { max: most, value: row.keys, "aria-label": `${row.keys} keys` }) },
    { label: "Mail", cell: (row) => (row.has_mail ? "waits" : "") },
    { label: "Last heartbeat", cell: (row) => since(row.silent_ms), number: true },
    { label: "", cell: (row) => (row.live ? null : h("div", { class: "actions" }, button("Remove", () => removeInstance(own, row)))) },
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
      KEY,
      { label: "Owner", cell: (row) => (row.uid ? h("span", { class: "mono", title: row.uid }, brief(row.uid)) : badge("nobody", "bad")), class: "wrap" },
      { label: "Owner's heartbeat", cell: (row) => since(row.silent_ms), class: "wide" },
      { label: "Waiting", cell: (row) => count(row.pending), number: true },
    ], own.keys.rows, (row) => row.recip_key)
    : empty("routing", "No key has an owner yet", "A key gets an owner when a relay accepts its first message.");
  return card("Keys", { note: "with their owners", body: [form, own.problem ? h("p", { class: "soft", role: "alert" }, own.problem) : null, shown] },
    list, pager(own.keys, "keys"));
}

function deadDeliveries(redraw) {
  return deadLetters({
    path: "/v1/routing/dead-deliveries", title: "Dead deliveries", note: "the oldest first", redraw,
    none: ["routing", "No delivery was given up", "A message that its receiver refused in all attempts is listed here with the reason."],
    first: { label: "Receiver", cell: (row) => receiver(row.message), class: "wrap" },
    columns: () => [MESSAGE],
  });
}

function deadInbound(redraw) {
  return deadLetters({
    path: "/v1/routing/dead", title: "Inbound messages that no instance could handle",
    note: "the oldest first; a retried one goes behind newer messages of its key; the log of the role inbox has the details", redraw,
    first: KEY,
    columns: () => [MESSAGE],
  });
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

async function removeInstance(own, row) {
  const sure = await confirm("Remove the instance?", "Its keys lose their owner; messages are kept for the next one.", "Remove");
  if (!sure) return;
  await act(() => remove(`/v1/routing/instances/${part(row.uid)}`), "Removed");
  await again(own);
}

async function again(own) {
  const found = await get("/v1/routing/instances").catch(() => null);
  if (found) own.instances = found.instances;
  own.redraw();
}
