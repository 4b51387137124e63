// The flow diagram: modules, the edges between them with their rates, the journal below.

import { s } from "./dom.js";
import { count, duration, many, rate, short } from "./format.js";

export const MODULES = {
  dispatch: "Dispatch", routing: "Routing", transactions: "Transactions",
  conversations: "Conversations", pickup: "Pickup",
};
// Each module's word for its waiting work.
const WAITING = {
  dispatch: () => "pending", routing: () => "waiting", transactions: () => "open",
  conversations: () => "in flight", pickup: (value) => (value === 1 ? "queue" : "queues"),
};
const BOX = { width: 166, height: 116 };
// Source, target, the rate's name and its label.
const EDGES = [
  ["publishers", "dispatch", "dispatch.accepted", "accepted"],
  ["dispatch", "transactions", "dispatch.completed", "completed"],
  ["transactions", "conversations", "transactions.completed", "ended"],
  ["conversations", "pickup", "conversations.sent", "sent"],
  ["pickup", "recipients", "pickup.delivered", "delivered"],
  ["senders", "routing", "routing.accepted", "accepted"],
  ["routing", "instances", "routing.delivered", "handled"],
];
const WIDE = {
  size: [1200, 388], journal: [0, 328, 1200, 54],
  modules: { dispatch: [161, 6], transactions: [398, 6], conversations: [635, 6], pickup: [872, 6], routing: [161, 176] },
  ends: { publishers: [0, 46, 90, 36, "Publishers"], recipients: [1110, 46, 90, 36, "Recipients"],
    senders: [0, 216, 90, 36, "Senders"], instances: [398, 216, 90, 36, "Instances"] },
};
const NARROW = {
  size: [330, 1016], journal: [0, 956, 330, 54],
  modules: { dispatch: [82, 78], transactions: [82, 250], conversations: [82, 422], pickup: [82, 594], routing: [82, 824] },
  ends: { publishers: [115, 0, 100, 34, "Publishers"], recipients: [115, 766, 100, 34, "Recipients"] },
};

export function flowDiagram(model, narrow) {
  const plan = narrow ? NARROW : WIDE;
  const [width, height] = plan.size;
  const edges = EDGES.filter(([from, to]) => at(plan, from) && at(plan, to));
  return s("svg", { class: "flow-diagram", viewBox: `0 0 ${width} ${height}`, role: "group",
    "aria-label": "Flow diagram: waiting work in each module, and rates between them" },
    narrow ? null : Object.keys(plan.modules).map((name) => journalLine(plan, name)),
    edges.map((edge) => drawEdge(plan, model, edge, narrow)),
    Object.keys(plan.modules).map((name) => drawModule(plan.modules[name], model, name)),
    Object.values(plan.ends).map(drawEnd),
    narrow ? routingWords(plan, model) : null,
    drawJournal(plan.journal, model, narrow));
}

function at(plan, name) {
  if (plan.modules[name]) return [...plan.modules[name], BOX.width, BOX.height];
  return plan.ends[name];
}

function drawModule([x, y], model, name) {
  const module = model.modules[name];
  const lines = [
    module.oldestMs === null ? null : `oldest ${duration(module.oldestMs)}`,
    module.troublePerS ? `${rate(module.troublePerS)} redelivered` : null,
  ].filter(Boolean);
  const words = `${MODULES[name]}: ${count(module.pending)} ${WAITING[name](module.pending)}, ${lines.join(", ")}`;
  return s("a", { href: `#/${name}`, "aria-label": words, key: name },
    s("g", { class: "module" },
      s("rect", { class: "box", x, y, width: BOX.width, height: BOX.height, rx: 12 }),
      s("text", { class: "name", x: x + 16, y: y + 29 }, MODULES[name]),
      s("circle", { class: `state ${tone(model, name)}`, cx: x + BOX.width - 13, cy: y + 14, r: 5.5 },
        s("title", {}, many(module.processes, "process", "processes"))),
      s("text", { class: "big", x: x + 16, y: y + 65 }, short(module.pending),
        s("tspan", { class: "small", dx: 7 }, WAITING[name](module.pending))),
      s("text", { class: "small", x: x + 16, y: y + 86 }, lines[0] ?? (module.pending ? "in progress" : "nothing waiting")),
      s("text", { class: `small ${module.troublePerS ? "warn" : ""}`, x: x + 16, y: y + 104 },
        lines[1] ?? many(module.processes, "process", "processes"))));
}

function tone(model, name) {
  const own = model.notices.filter((notice) => notice.module === name);
  if (own.some((notice) => notice.level === "trouble")) return "bad";
  if (own.length) return "warn";
  return model.modules[name].processes ? "good" : "";
}

const drawEnd = ([x, y, width, height, name]) =>
  s("g", { class: "end", key: name },
    s("rect", { x, y, width, height, rx: height / 2 }),
    s("text", { x: x + width / 2, y: y + height / 2 + 4.5, "text-anchor": "middle" }, name));

function drawEdge(plan, model, [from, to, event, verb], narrow) {
  const [ax, ay, aw, ah] = at(plan, from);
  const [bx, by, bw, bh] = at(plan, to);
  const perSecond = model.rates[event] ?? 0;
  const moving = perSecond > 0 ? `moving ${perSecond >= 50 ? "fast" : ""}` : "";
  const x1 = narrow ? ax + aw / 2 : ax + aw + 6;
  const y1 = narrow ? ay + ah + 6 : ay + ah / 2;
  const x2 = narrow ? bx + bw / 2 : bx - 13;
  const y2 = narrow ? by - 13 : by + bh / 2;
  const tip = narrow ? `M${x2 - 6} ${y2} h12 l-6 9z` : `M${x2} ${y2 - 6} v12 l9 -6z`;
  const words = narrow ? [x1 + 44, (y1 + y2) / 2 + 4, x1 - 44, (y1 + y2) / 2 + 4]
    : [(x1 + x2) / 2 + 4, y1 - 12, (x1 + x2) / 2 + 4, y1 + 21];
  return s("g", { class: "edge", key: event },
    s("path", { class: moving, d: `M${x1} ${y1} L${x2} ${y2}` }),
    s("path", { class: `tip ${perSecond > 0 ? "on" : ""}`, d: tip }),
    s("text", { class: `rate ${perSecond ? "" : "none"}`, x: words[0], y: words[1], "data-edge": event },
      perSecond ? rate(perSecond) : "–"),
    s("text", { class: "verb", x: words[2], y: words[3] }, verb));
}

/** On a small screen routing has no neighbours; its two rates stand at its sides. */
function routingWords(plan, model) {
  const [x, y] = plan.modules.routing;
  const sides = [["routing.accepted", "in", x - 40], ["routing.delivered", "out", x + BOX.width + 40]];
  return sides.map(([event, verb, middle]) => s("g", { class: "edge", key: event },
    s("text", { class: `rate ${model.rates[event] ? "" : "none"}`, x: middle, y: y + 52, "data-edge": event },
      model.rates[event] ? rate(model.rates[event]) : "–"),
    s("text", { class: "verb", x: middle, y: y + 70 }, verb)));
}

function journalLine(plan, name) {
  const [x, y] = plan.modules[name];
  const middle = x + BOX.width - 28;
  return s("path", { class: "journal-line", d: `M${middle} ${y + BOX.height + 6} V${plan.journal[1] - 5}`, key: `journal line ${name}` });
}

function drawJournal([x, y, width, height], model, narrow) {
  const { events, readers } = model.journal;
  const behind = Object.entries(readers);
  const readBy = behind.length
    ? behind.map(([name, ms]) => `${name} ${ms < 1000 ? "up to date" : `${duration(ms)} behind`}`).join(", ")
    : "no reader yet";
  const written = `${rate(model.rates["journal.events"] ?? 0)} · ${short(events)} events`;
  return s("a", { href: "#/lake", "aria-label": `Journal: ${written}; ${readBy}`, key: "journal" },
    s("g", { class: "journal module" },
      s("rect", { class: "box", x, y, width, height, rx: 12 }),
      s("text", { class: "name", x: x + 18, y: y + (narrow ? 23 : 33) }, "Journal"),
      s("text", { class: "small", x: x + 92, y: y + (narrow ? 23 : 32.5) }, written),
      s("text", { class: "small", x: narrow ? x + 18 : x + width - 18, y: y + (narrow ? 42 : 32.5),
        "text-anchor": narrow ? "start" : "end" }, readBy)));
}
