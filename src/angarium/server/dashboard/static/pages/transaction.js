// One transaction: its state, steps, time line and events; set a switch, cancel.

import { follow, get, part, post, put } from "../api.js";
import { h } from "../dom.js";
import { ago, ahead, at, count, duration, pretty } from "../format.js";
import { history } from "../history.js";
import { act, badge, button, card, confirm, empty, facts, heading, loading } from "../parts.js";
import { timeline } from "../timeline.js";

const TONES = { success: "good", running: "accent", sleeping: "warn", queued: "", cancelled: "" };
const MOVING = ["queued", "running", "sleeping"];

export const statusBadge = (status) => badge(status, status in TONES ? TONES[status] : "bad");

export function transaction(id, redraw) {
  const own = { id, found: null, problem: null, steps: null, events: null, redraw };
  const leaving = new AbortController();
  listenTo(own, leaving.signal);
  return { load: () => load(own), view: () => view(own), leave: () => leaving.abort() };
}

/** Changes arrive as events; the reload every few seconds fetches the rest. */
function listenTo(own, signal) {
  follow(`/v1/transactions/${part(own.id)}/events`, signal, (_, state) => {
    own.found = state;
    own.redraw();
  }).catch(() => {});
}

async function load(own) {
  try {
    own.found = await get(`/v1/transactions/${part(own.id)}`);
    own.problem = null;
  } catch (error) {
    if (error.status !== 404 && error.status !== 400) throw error;
    own.problem = error;
    return;
  }
  const { pipeline, version } = own.found;
  const versions = await get(`/v1/pipelines/${part(pipeline)}`).catch(() => ({ pipelines: [] }));
  own.steps = versions.pipelines.find((one) => one.version === version)?.steps ?? null;
  const search = await get("/v1/search", { id: own.id }).catch(() => null);
  own.trace = search?.trace_id;
  own.events = search ? search.history.filter((event) => event.subject === own.id) : [];
}

function view(own) {
  const { found } = own;
  const back = h("a", { class: "button", href: "#/transactions" }, "All transactions");
  const title = h("span", {}, "Transaction ", h("span", { class: "mono wrap" }, own.id));
  if (own.problem)
    return [heading(title, null, back), card("Not found", { body: empty("transactions", own.problem.message, "Check the id. Ended transactions are read from the archive.") })];
  if (!found) return [heading(title, null, back), loading()];
  const moving = MOVING.includes(found.status);
  return [
    heading(title, h("span", {}, statusBadge(found.status), ` ${found.pipeline} version ${found.version}, started ${ago(found.created_ms)}`),
      back, moving ? button("Cancel", () => cancel(own), "danger") : null),
    own.steps ? steps(own.steps, found, moving) : null,
    timeLine(own),
    h("div", { class: "grid", key: "details" }, state(own), moving ? switches(own) : null, webhook(found)),
    h("div", { class: "grid", key: "data" }, data("Data", found.data), data("Progress", found.progress), data("Output", found.output)),
    own.events?.length ? card("Events", { body: history(own.events, own.id) }) : null,
  ];
}

function steps(definition, found, moving) {
  const look = (number) => {
    if (found.status === "success" || number < (found.step ?? 0)) return "done";
    if (number > (found.step ?? 0)) return "";
    return moving ? "now" : "stopped";
  };
  const words = { done: "done", now: "now", stopped: "ended here" };
  return card("Steps", { body: h("ol", { class: "steps" }, definition.map((step, number) =>
    h("li", { class: look(number), key: number }, h("i", {}, String(number + 1)), step.type ?? `pipeline ${step.pipeline}`,
      words[look(number)] ? h("i", {}, words[look(number)]) : null))) });
}

function timeLine(own) {
  if (own.events === null) return loading();
  return card("Time line", { note: own.found.completed_ms ? `took ${duration(own.found.completed_ms - own.found.created_ms)}` : "so far",
    body: timeline(own.found, own.events) });
}

function state({ found, trace }) {
  return card("State", { body: facts(
    ["Status", statusBadge(found.status)], ["Owner", found.owner], ["External id", found.external_id],
    ["Node group", found.node_group], ["Node", found.node], ["Run", found.run ? count(found.run) : null],
    ["Wakes", found.wake_ms ? `${at(found.wake_ms)} (${ahead(found.wake_ms)})` : null],
    ["Waits for switch", found.switch], ["Waits for a node with step", found.waits_for_step], ["Children left", found.children_left ?? null],
    ["Parent", found.parent ? h("a", { class: "mono", href: `#/transactions/${encodeURIComponent(found.parent)}` }, found.parent) : null],
    ["Started", at(found.created_ms)], ["Changed", at(found.updated_ms)], ["Ended", found.completed_ms ? at(found.completed_ms) : null],
    ["Client notified", found.notified_ms ? at(found.notified_ms) : null], ["Note", found.note],
    ["Trace", trace ? h("span", { class: "mono wrap" }, trace) : null]) });
}

function switches(own) {
  const send = (event) => {
    const form = new FormData(event.target);
    void setSwitch(own, form.get("name").trim(), form.get("value"));
  };
  return card("Set a switch", { note: "wakes the transaction if it sleeps for this switch", body: h("form", { class: "form", on: { submit: send } },
    h("label", { class: "grow" }, "Switch", h("input", { name: "name", required: true, value: own.found.switch ?? "", spellcheck: "false" })),
    h("label", { class: "grow" }, "Value", h("input", { name: "value", placeholder: "any text", spellcheck: "false" })),
    h("button", { type: "submit" }, "Set it")) });
}

function webhook(found) {
  if (!found.webhook) return null;
  const delivery = found.webhook_delivered_ms ? badge(`delivered ${ago(found.webhook_delivered_ms)}`, "good")
    : found.webhook_given_up_ms ? badge(`given up ${ago(found.webhook_given_up_ms)}`, "bad")
    : badge(found.completed_ms ? "due" : "sent when it ends");
  return card("Webhook", { body: facts(["Receiver", found.webhook], ["State", delivery],
    ["Tries", found.webhook_tries ? count(found.webhook_tries) : null], ["Last problem", found.webhook_error]) });
}

function data(title, value) {
  if (value === null || value === undefined) return null;
  return card(title, { body: h("pre", {}, pretty(value)) });
}

async function cancel(own) {
  const sure = await confirm("Cancel this transaction?", "A running transaction is stopped by its node. Side effects of its steps are not undone.", "Cancel it");
  if (!sure) return;
  await act(() => post(`/v1/transactions/${part(own.id)}/cancel`), (answer) =>
    answer.status === "cancelling" ? "Its node will stop it" : "The transaction is cancelled");
  await load(own).catch(() => {});
  own.redraw();
}

async function setSwitch(own, name, value) {
  await act(() => put(`/v1/transactions/${part(own.id)}/switches/${part(name)}`, { value }), (answer) => `Switch ${name}: ${answer.status}`);
  await load(own).catch(() => {});
  own.redraw();
}
