// A transaction's time line: when it was queued, running and sleeping, and when steps ended.

import { h, s } from "./dom.js";
import { clock, duration } from "./format.js";

const NARROW = matchMedia("(max-width: 700px)");
const BAR = { y: 24, height: 22 };
// The state that begins with an event; null changes no state.
const BEGINS = {
  started: "queued", taken: "running", slept: "sleeping", woken: "queued", switched: null, resumed: "queued",
  returned: "queued", recovered: "queued", step_awaited: "queued", called: "sleeping", completed: "", cancelled: "", expired: "",
};
const MOVING = new Set(["queued", "running", "sleeping"]);
const CIRCLES = new Set(["advanced", "progressed", "completed", "cancelled", "expired"]);

/** Periods of one state each; without events, only the current one. */
export function periods(found, events) {
  const end = found.completed_ms ?? clock.now();
  const moments = events.filter((event) => BEGINS[event.event] !== undefined && BEGINS[event.event] !== null)
    .map((event) => ({ state: BEGINS[event.event], at: event.at_ms }));
  // Without events, states before the last change are unknown.
  if (!moments.length) moments.push({ state: MOVING.has(found.status) ? found.status : "", at: found.updated_ms });
  return moments.map(({ state, at }, number) => ({ state, from: at, to: moments[number + 1]?.at ?? Math.max(at, end) }))
    .filter(({ state }) => state);
}

export function timeline(found, events) {
  const width = NARROW.matches ? 330 : 1000;
  const end = Math.max(found.completed_ms ?? clock.now(), found.created_ms + 1, ...events.map((event) => event.at_ms));
  const place = (ms) => ((ms - found.created_ms) / (end - found.created_ms)) * width;
  const parts = periods(found, events);
  const words = parts.map(({ state, from, to }) => `${state} ${duration(to - from)}`).join(", ");
  return [
    s("svg", { class: "timeline", viewBox: `0 0 ${width} 78`, role: "img", "aria-label": `Time line: ${words}` },
      s("line", { class: "rule", x1: 0, x2: width, y1: BAR.y + BAR.height / 2, y2: BAR.y + BAR.height / 2 }),
      parts.map(({ state, from, to }) => s("rect", { class: state, x: place(from).toFixed(1), y: BAR.y,
        width: Math.max(2, place(to) - place(from)).toFixed(1), height: BAR.height, rx: 4 },
        s("title", {}, `${state} for ${duration(to - from)}`))),
      events.filter((event) => CIRCLES.has(event.event)).map((event) => circle(event, place(event.at_ms))),
      [[0, "start", "0"], [0.5, "middle", duration((end - found.created_ms) / 2)], [1, "end", duration(end - found.created_ms)]]
        .map(([share, anchor, word]) => s("text", { x: share * width, y: 70, "text-anchor": anchor }, word))),
    h("div", { class: "actions" }, ["queued", "running", "sleeping"].map((state) =>
      h("span", { class: "key", key: state }, h("i", { class: state }), state)),
      h("span", { class: "key" }, "○ a step ended or reported"),
      events.length ? null : h("span", { class: "key" }, "· the journal no longer has its earlier events")),
  ];
}

function circle(event, x) {
  const ending = event.event === "completed" || event.event === "cancelled" || event.event === "expired";
  const good = event.event === "completed" && (event.status ?? "success") === "success";
  return s("circle", { class: `mark ${ending ? (good ? "good" : "bad") : ""}`, cx: x.toFixed(1), cy: BAR.y + BAR.height / 2, r: 6 },
    s("title", {}, [event.event, event.status, event.attempt && `no. ${event.attempt}`].filter(Boolean).join(" ")));
}
