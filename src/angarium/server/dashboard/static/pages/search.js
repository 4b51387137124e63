// Search: any id, where it is now, and everything that ever happened to it.

import { get } from "../api.js";
import { h } from "../dom.js";
import { count, pretty } from "../format.js";
import { MODULES } from "../flow.js";
import { history } from "../history.js";
import { badge, card, empty, heading, loading } from "../parts.js";

const PLACES = {
  transactions: (id) => `#/transactions/${encodeURIComponent(id)}`,
  conversations: (id) => `#/conversations/${encodeURIComponent(id)}`,
  pickup: (id) => `#/pickup/${encodeURIComponent(id)}`,
};
const KINDS = { transaction: "transactions", conversation: "conversations", connection: "pickup" };
const LAKES = { joined: "The lake was asked too.", "never ran": "The lake has not run yet: this is what the journal in Redis still has.",
  "not installed": "The lake is not installed: this is what the journal in Redis still has." };

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
        "Any id: of a message, a transaction, a conversation, a request or reply, a connection, a recipient key."),
      id ? result(id, own) : card("Nothing asked yet", { body: empty("search", "Enter an id at the top", "Press / to get there from anywhere.") }),
    ],
  };
}

function result(id, own) {
  if (own.problem)
    return card("Not found", { body: empty("search", own.problem.message, "Check the spelling. What ended long ago is known only if the lake has run.", "angarium lake run") });
  if (!own.found) return loading();
  return [now(id, own.found), trace(own.found), related(own.found), past(id, own.found)];
}

function now(id, found) {
  if (!found.found.length)
    return card("Now", { body: empty("search", "No module holds it any more", "It has ended; its history is below.") });
  return h("div", { class: "grid", key: "now" }, found.found.map((one) => {
    const place = PLACES[one.module] && KINDS[one.kind] === one.module ? PLACES[one.module](one.state?.id ?? id) : null;
    return card(`${MODULES[one.module] ?? one.module}: ${one.kind}`, { key: one.module + one.kind,
      actions: place ? h("a", { class: "button", href: place }, "Open") : null,
      body: h("pre", {}, pretty(one.state)) });
  }));
}

function trace(found) {
  if (!found.trace_id) return null;
  return card("Trace", { note: "Its spans at your collector, if one is set (OTEL_EXPORTER_OTLP_ENDPOINT).",
    body: h("p", { class: "mono wrap" }, found.trace_id) });
}

function related(found) {
  if (!found.related.length) return null;
  return card("Belongs to the same story", { body: h("ul", { class: "steps" }, found.related.map((one) =>
    h("li", { key: one.kind + one.id }, h("i", {}, one.kind),
      h("a", { class: "mono wrap", href: `#/search?id=${encodeURIComponent(one.id)}` }, one.id)))) });
}

function past(id, found) {
  const note = [LAKES[found.lake] ?? found.lake, found.complete ? "" : "Older events were not reached."].join(" ");
  return card("History", { note, actions: badge(`${count(found.history.length)} events`),
    body: found.history.length ? history(found.history, id)
      : empty("search", "No event is known", "The journal has let go of it, or is switched off.") });
}
