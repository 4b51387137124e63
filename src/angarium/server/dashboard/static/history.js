// An id's history: one line for each journal event, oldest first.

import { h } from "./dom.js";
import { exactly } from "./format.js";
import { MODULES } from "./flow.js";

const GOOD = new Set(["delivered", "completed", "acknowledged", "picked_up", "webhook_delivered"]);
const BAD = new Set(["dead", "cancelled", "expired", "failed", "rejected", "webhook_given_up", "webhook_failed", "timeout"]);
const SHOWN_MAX = 500;

/** Lines name their subject only if it is not `id`. */
export function history(events, id) {
  const shown = events.slice(-SHOWN_MAX);
  const left = events.length - shown.length;
  return [
    left ? h("p", { class: "soft" }, `The last ${SHOWN_MAX} events; ${left} older ones are left out.`) : null,
    h("ol", { class: "history" }, shown.map((event) => line(event, id))),
  ];
}

/** A failure's detail goes on with its traceback, which the page of the message shows. */
const LINE_END = "␤";

function line(event, id) {
  const words = [
    event.status, event.pipeline && `pipeline ${event.pipeline}`, event.node && `at ${event.node}`,
    event.attempt && `no. ${event.attempt}`, event.key && `for ${event.key}`, event.detail?.split(LINE_END)[0],
  ].filter(Boolean).join(" · ");
  return h("li", { class: tone(event) }, h("time", { datetime: new Date(event.at_ms).toISOString() }, exactly(event.at_ms)),
    h("b", {}, event.event.replaceAll("_", " ")), h("span", { class: "module" }, MODULES[event.module] ?? event.module),
    words ? h("span", { class: "soft wrap" }, words) : null,
    event.subject === id ? null : h("span", { class: "faint mono wrap" }, event.subject),
    event.source === "lake" ? h("span", { class: "faint" }, "from the lake") : null);
}

function tone(event) {
  if (event.event === "completed" && event.status && event.status !== "success") return "bad";
  if (GOOD.has(event.event)) return "good";
  if (BAD.has(event.event)) return "bad";
  return ["accepted", "started", "requested"].includes(event.event) ? "accent" : "";
}
