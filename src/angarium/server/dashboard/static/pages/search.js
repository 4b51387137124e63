// Search: the current state and the history of any id.

import { get } from "../api.js";
import { h } from "../dom.js";
import { count, pretty } from "../format.js";
import { MODULES } from "../flow.js";
import { history } from "../history.js";
import { badge, card, empty, heading, loading } from "../parts.js";

const PLACES = {
  dispatch: (id) => `#/dispatch/${encodeURIComponent(id)}`,
  transactions: (id) => `#/transactions/${encodeURIComponent(id)}`,
  conversations: (id) => `#/conversations/${encodeURIComponent(id)}`,
  pickup: (id) => `#/pickup/${encodeURIComponent(id)}`,
};
const KINDS = { message: "dispatch", transaction: "transactions", conversation: "conversations", connection: "pickup" };
const LAKES = { joined: "Includes events from the lake.", "never ran": "The lake has not run yet: these events are from the journal in Redis.",
  "not installed": "The lake is not installed: these events are from the journal in Redis." };

export function page({ parameters }) {
  const id = parameters.get("id") ?? "";
  const own = { found: null, problem: null };
  return {
    async load() {
      if (!id) return;
      try {
        [own.found, own.problem] = [await get("/v1/search", { id }), null];
      } catch (error) {
        if (error.away || error.status === 401) throw error;
        own.problem = error;
      }
    },
    view: () => [
      heading(id ? h("span", {}, "Search ", h("span", { class: "mono wrap" }, id)) : "Search",
        "Finds the id of a message, transaction, conversation, request, reply, connection or recipient key."),
      id ? result(id, own) : card("No search yet", { body: empty("search", "Enter an id at the top", "Press / to get there from anywhere.") }),
    ],
  };
}

function result(id, own) {
  if (own.problem)
    return card("Not found", { body: empty("search", own.problem.message, "Check the spelling. Old events are found only if the lake has run.", "angarium lake run") });
  if (!own.found) return loading();
  return [now(id, own.found), trace(own.found), related(own.found), past(id, own.found)];
}

function now(id, found) {
  if (!found.found.length)
    return card("Now", { body: empty("search", "No module has it now", "It has ended; its history is below.") });
  return h("div", { class: "grid", key: "now" }, found.found.map((one) => {
    const place = PLACES[one.module] && KINDS[one.kind] === one.module ? PLACES[one.module](one.state?.id ?? id) : null;
    return card(`${MODULES[one.module] ?? one.module}: ${one.kind}`, { key: one.module + one.kind,
      actions: place ? h("a", { class: "button", href: place }, "Open") : null,
      body: h("pre", {}, pretty(one.state)) });
  }));
}

function trace(found) {
  if (!found.trace_id) return null;
  return card("Trace", { note: "The id of its spans at your collector, if OTEL_EXPORTER_OTLP_ENDPOINT is set.",
    body: h("p", { class: "mono wrap" }, found.trace_id) });
}

function related(found) {
  if (!found.related.length) return null;
  return card("Related ids", { body: h("ul", { class: "steps" }, found.related.map((one) =>
    h("li", { key: one.kind + one.id }, h("i", {}, one.kind),
      h("a", { class: "mono wrap", href: `#/search?id=${encodeURIComponent(one.id)}` }, one.id)))) });
}

function past(id, found) {
  const note = [LAKES[found.lake] ?? found.lake, found.complete ? "" : "Older events are missing."].join(" ");
  return card("History", { note, actions: badge(`${count(found.history.length)} events`),
    body: found.history.length ? history(found.history, id)
      : empty("search", "No events found", "The journal no longer has its events, or is switched off.") });
}
