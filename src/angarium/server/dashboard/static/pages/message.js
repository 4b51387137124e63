// One message: its state, result or failures, payload and history.

import { get, part, post } from "../api.js";
import { h } from "../dom.js";
import { ago, at, bytes, count, pretty } from "../format.js";
import { history } from "../history.js";
import { act, badge, button, card, empty, facts, heading, loading } from "../parts.js";

const TONES = { queued: "", pending: "accent", completed: "good", dead: "bad" };
const WORDS = {
  queued: "It waits in the durable intake for a dispatcher.",
  pending: "A dispatcher accepted it; no worker has finished it yet.",
  completed: "A worker finished it.",
  dead: "All its deliveries failed. It stays here until you retry or drop it.",
};

export function message(id, redraw) {
  const own = { id, state: null, problem: null, payload: null, hidden: "", past: null, redraw };
  return { load: () => load(own), view: () => view(own) };
}

async function load(own) {
  const path = `/v1/messages/${part(own.id)}`;
  const quiet = (error) => {
    if (error.away || error.status === 401) throw error;
    return error;
  };
  [own.state, own.problem] = await get(path).then((found) => [found, null], (error) => [null, quiet(error)]);
  if (own.state && own.state.state !== "completed" && own.payload === null && !own.hidden)
    [own.payload, own.hidden] = await get(`${path}/payload`).then((found) => [found, ""], (error) => [null, quiet(error).message]);
  own.past = await get("/v1/search", { id: own.id }).catch((error) => (quiet(error), null));
}

function view(own) {
  const title = h("span", {}, "Message ", h("span", { class: "mono wrap" }, own.id));
  if (!own.state && !own.problem) return [heading(title), loading()];
  const { state } = own;
  const retry = button("Retry", () => again(own), "primary");
  return [
    heading(title, state ? WORDS[state.state] : null, ...(state?.state === "dead" ? [retry] : [])),
    state ? summary(state) : card("State", { body: empty("dispatch", ended(own) ?? "Not found", own.problem.message) }),
    state?.result ? result(state) : null,
    state?.reasons.length ? failures(state) : null,
    payload(own),
    past(own),
  ];
}

/** Workers in other languages acknowledge a message without a result. */
const ended = (own) => {
  const last = own.past?.history.findLast((one) => one.subject === own.id && one.module === "dispatch");
  return last ? `Its last event is: ${last.event}` : null;
};

const summary = (state) => card("State", { actions: badge(state.state, TONES[state.state]), body: facts(
  [state.state === "completed" ? "Finished" : state.state === "dead" ? "Died" : "Since", h("span", { title: ago(state.at_ms) }, at(state.at_ms))],
  state.consumer ? ["Worker", h("span", { class: "mono wrap" }, state.consumer)] : null,
  state.deliveries ? ["Deliveries", count(state.deliveries)] : null) });

function result(state) {
  const fields = Object.entries(state.result);
  if (!fields.length) return card("Result", { body: empty("dispatch", "The worker returned nothing", "That is a result too: the message is finished.") });
  return card("Result", { note: "the fields of its entry in the stream", body: facts(...fields.map(([name, text]) =>
    [name, /^[[{]/.test(text) ? h("pre", {}, pretty(text)) : h("span", { class: "wrap" }, text)])) });
}

const failures = (state) => card("Failures", { note: "one line for each failed delivery", body: [
  h("ol", {}, state.reasons.map((one) => h("li", { class: "wrap" }, one))),
  state.traceback ? h("pre", { class: "traceback", "aria-label": "Traceback of the last failure" }, state.traceback) : null] });

function payload(own) {
  if (!own.payload) return own.hidden ? card("Payload", { body: h("p", { class: "soft" }, own.hidden) }) : null;
  const found = own.payload;
  const note = `${bytes(new Blob([found.payload]).size)}${found.payload_encoding === "base64" ? " as base64" : ""}`;
  return card("Payload", { note, body: h("pre", {}, pretty(found.payload)) });
}

function past(own) {
  if (!own.past) return null;
  return card("History", { actions: h("a", { class: "button", href: `#/search?id=${encodeURIComponent(own.id)}` }, "All about this id"),
    body: own.past.history.length ? history(own.past.history, own.id) : empty("search", "No events found", "The journal no longer has its events.") });
}

async function again(own) {
  await act(() => post(`/v1/dispatch/dead/${part(own.id)}/retry`), "The message is pending again");
  await load(own).catch(() => {});
  own.redraw();
}
