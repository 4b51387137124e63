// Conversations: those with waiting replies or requests, and one conversation's queue with reasons.

import { get, part } from "../api.js";
import { deadLetters } from "../dead_letters.js";
import { h } from "../dom.js";
import { ago, ahead, at, count, duration } from "../format.js";
import { model } from "../model.js";
import { badge, card, empty, heading, loading, pager, table, tiles } from "../parts.js";
import { paged } from "../paging.js";

const href = (id) => `#/conversations/${encodeURIComponent(id)}`;
// For each reason: the badge's text and tone, and the class of the reply.
const LOOKS = {
  send: ["may leave", "good", "leaving"], sent: ["sent", "accent", "sent"], awaited: ["retried later", "warn", "held"],
  not_held: ["not taken yet", "", ""], no_sender: ["no process has its sender", "bad", "held"], wait_request: ["waits for a request", "warn", "held"],
  wait_response: ["waits for a reply", "", ""], expired: ["expired", "bad", "held"],
};

export function page({ rest, parameters, redraw }) {
  const id = rest.join("/");
  return id ? one(id) : all(parameters.get("kind") === "requests" ? "requests" : "replies", redraw);
}

function all(kind, redraw) {
  const list = paged("/v1/conversations", "conversations", () => ({ kind }), redraw);
  const dead = deadReplies(redraw);
  return { load: () => Promise.all([list.load(), dead.load()]), view: () => listed(kind, list, dead) };
}

function listed(kind, list, dead) {
  const metrics = model.facts.conversations;
  const open = (event) => { location.hash = href(new FormData(event.target).get("id").trim()); };
  return [
    heading("Conversations", "Replies are sent in the order of their requests, whichever process produces them."),
    tiles(["Replies in flight", count(metrics.replies)], ["Open requests", count(metrics.requests), "without a reply"],
      ["Without a sender", count(metrics.without_sender), "no process can send them"],
      ["Dead", count(metrics.dead), "cancelled after a failure", metrics.dead ? "warn" : ""], ["Processes", count(model.modules.conversations.processes)]),
    list.answer?.needs.length ? needs(list.answer.needs) : null,
    card("Find a conversation", { body: h("form", { class: "form", on: { submit: open } },
      h("label", { class: "grow" }, "Conversation", h("input", { name: "id", required: true, placeholder: "Conversation id", spellcheck: "false" })),
      h("button", { type: "submit" }, "Show its queue")) }),
    card("Waiting", { actions: h("nav", { class: "tabs", "aria-label": "What waits" },
      [["replies", "Replies in flight"], ["requests", "Requests without a reply"]].map(([name, text]) =>
        h("a", { href: `#/conversations?kind=${name}`, "aria-current": String(kind === name) }, text))) },
      list.read ? rows(kind, list) : loading(), pager(list, "conversations")),
    dead.view(),
  ];
}

function deadReplies(redraw) {
  return deadLetters({
    path: "/v1/conversations/replies/dead", title: "Dead replies", redraw,
    note: "cancelled because a send failed for good; a retried reply goes to the end of its conversation",
    first: { label: "Reply", cell: (row) => h("span", { class: "mono" }, row.id), class: "wrap" },
    columns: () => [{ label: "Conversation", cell: (row) => h("a", { href: href(row.conversation_id), class: "mono" }, row.conversation_id), class: "wrap" }],
  });
}

function needs(waiting) {
  return card("Without a sender", { note: "replies whose sender no running process has", key: "needs", table: table("Without a sender", [
    { label: "Sender", cell: (row) => row.senders.join(" or "), class: "wrap" },
    { label: "Replies", cell: (row) => count(row.replies), number: true },
    { label: "First waits since", cell: (row) => h("span", { title: at(row.since_ms) }, ago(row.since_ms)), number: true },
  ], waiting, (row) => row.senders.join("|")) });
}

function rows(kind, list) {
  if (!list.rows.length)
    return kind === "replies"
      ? empty("conversations", "No reply is in flight", "Open a request and post replies to it. Waiting replies are listed here with the reason.", "POST /v1/conversations/requests")
      : empty("conversations", "Every request has a reply", "A request without a reply is listed here.");
  return table("Conversations", [
    { label: "Conversation", cell: (row) => h("a", { href: href(row.conversation_id), class: "mono" }, row.conversation_id), class: "wrap" },
    { label: kind === "replies" ? "Replies" : "Requests", cell: (row) => count(kind === "replies" ? row.replies : row.requests), number: true },
    { label: kind === "replies" ? "Next check" : "Expires", cell: (row) => h("span", { title: at(row.at_ms) }, ahead(row.at_ms)), number: true },
  ], list.rows, (row) => row.conversation_id);
}

function one(id) {
  const own = { found: null, problem: null };
  return {
    async load() {
      try {
        [own.found, own.problem] = [await get(`/v1/conversations/${part(id)}`), null];
      } catch (error) {
        if (error.status !== 404 && error.status !== 400) throw error;
        own.problem = error;
      }
    },
    view: () => [
      heading(h("span", {}, "Conversation ", h("span", { class: "mono wrap" }, id)), null,
        h("a", { class: "button", href: "#/conversations" }, "All conversations"),
        h("a", { class: "button", href: `#/search?id=${encodeURIComponent(id)}` }, "Its history")),
      own.problem ? card("Not found", { body: empty("conversations", own.problem.message, "It may have ended; look at its history.") })
        : own.found ? queue(own.found) : loading(),
    ],
  };
}

function queue(found) {
  const groups = grouped(found);
  if (!groups.length)
    return card("Queue", { body: empty("conversations", "Nothing waits in this conversation",
      "All its replies were delivered, or it never had a request. Look at its history.") });
  const note = `${count(found.requests_total)} requests, ${count(found.replies_total)} replies, the next to send at the top`;
  return card("Queue", { note, body: h("ol", { class: "queue" }, groups.map((group) => request(group, found.now_ms))) });
}

/** Requests in order, each with its replies. A removed request is placed by its replies. */
function grouped(found) {
  const groups = new Map();
  const group = (id, position) => {
    if (!groups.has(id)) groups.set(id, { id, position, request: null, replies: [] });
    return groups.get(id);
  };
  for (const one of found.requests) group(one.request_id, one.position).request = one;
  for (const one of found.replies) group(one.reply.request_id, one.reply.position).replies.push(one);
  return [...groups.values()].sort((a, b) => a.position - b.position);
}

function request({ id, request: open, replies }, nowMs) {
  const waits = !replies.length;
  const leaving = replies.some((one) => one.reason.why === "send");
  const left = open ? open.until_ms - nowMs : null;
  return h("li", { key: id, class: leaving ? "leaving" : waits ? "blocking" : "" },
    h("div", { class: "request" }, h("span", { class: "mono wrap" }, id),
      waits ? badge(open?.answered ? "all its replies were sent" : "no reply yet", open?.answered ? "" : "warn") : null,
      waits && left !== null && !open.answered
        ? h("span", { class: "soft" }, left > 0 ? `later replies wait for it ${duration(left)} at most` : "expired") : null),
    replies.length ? h("div", { class: "replies" }, replies.map(reply)) : null);
}

function reply({ reply: own, reason }) {
  const [word, tone, edge] = LOOKS[reason.why] ?? [reason.why, "", ""];
  return h("div", { class: `reply ${edge}`, key: own.response_id },
    h("div", { class: "line" }, h("span", { class: "mono wrap" }, own.response_id), badge(word, tone),
      own.awaited_retries ? h("span", { class: "faint" }, `retry ${own.awaited_retries}`) : null),
    h("div", { class: "why" }, reason.text, reason.until_ms ? ` · until ${at(reason.until_ms)} (${ahead(reason.until_ms)})` : ""));
}
