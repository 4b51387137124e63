// The page's data, updated with each sample.

import { get } from "./api.js";
import { clock } from "./format.js";

const POINTS_MAX = 100;
// The server stores a point every three seconds; samples arrive more often.
const STEP_MS = 2_500;
// A rate needs two reports of a process. Until a new stream has them, the page keeps the last rates.
const FRESH_MS = 7_000;

export const model = {
  ready: false,
  freshUntilMs: 0,
  version: "",
  modules: {},
  rates: {},
  facts: {},
  journal: { entries: 0, events: 0, dropped: 0, readers: {} },
  processes: [],
  notices: [],
  history: { times: [], rates: {}, waiting: {} },
};

/** Load the last minutes from the server, at the start and after a pause. */
export async function recall() {
  const past = await get("/v1/dashboard/history");
  model.history = { times: past.at_ms, rates: past.rates, waiting: past.waiting };
  for (const [edge, values] of Object.entries(past.rates)) model.rates[edge] = values.at(-1) ?? 0;
  model.freshUntilMs = Date.now() + FRESH_MS;
}

/** Store one sample of `/v1/live` or `/v1/dashboard`. */
export function absorb(found) {
  clock.set(found.at_ms);
  model.version = found.version;
  for (const [edge, value] of Object.entries(found.rates))
    if (value || Date.now() > model.freshUntilMs) model.rates[edge] = value;
  model.processes = found.processes;
  model.notices = found.notices;
  model.facts = Object.fromEntries(found.modules.map((module) => [module.name, module.facts]));
  model.modules = Object.fromEntries(found.modules.map((module) => [module.name, {
    pending: module.waiting, oldestMs: module.oldest_ms, processes: module.processes, dead: module.dead,
    troublePerS: module.name === "dispatch" ? found.rates["dispatch.redelivered"] : 0,
  }]));
  model.journal = { entries: found.journal.entries, events: found.journal.events,
    dropped: found.journal.dropped_events, readers: found.journal.behind_ms };
  model.ready = true;
  remember(found.at_ms);
}

function remember(atMs) {
  const { times, rates, waiting } = model.history;
  if (atMs - (times.at(-1) ?? 0) < STEP_MS) return;
  times.push(atMs);
  for (const [edge, value] of Object.entries(model.rates)) (rates[edge] ??= []).push(value);
  for (const [name, module] of Object.entries(model.modules)) (waiting[name] ??= []).push(module.pending);
  const series = [times, ...Object.values(rates), ...Object.values(waiting)];
  for (const one of series) while (one.length > POINTS_MAX) one.shift();
}
