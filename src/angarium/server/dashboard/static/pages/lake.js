// The lake: its lag behind the journal, its tables, the last audit, the report.

import { download, get } from "../api.js";
import { h } from "../dom.js";
import { ago, at, count, duration } from "../format.js";
import { MODULES } from "../flow.js";
import { model } from "../model.js";
import { act, badge, button, card, empty, heading, loading, table, tiles } from "../parts.js";

export function page() {
  const own = { found: null, problem: null, audit: null, unaudited: "" };
  return { load: () => load(own), view: () => view(own) };
}

async function load(own) {
  try {
    own.found = await get("/v1/lake");
    own.problem = null;
  } catch (error) {
    if (error.away || error.status === 401) throw error;
    own.problem = error;
    return;
  }
  [own.audit, own.unaudited] = await get("/v1/lake/audit").then((found) => [found, ""],
    (error) => [null, error.message]);
}

function view(own) {
  const title = heading("Lake", "A permanent copy of every journal event, with statistics and an audit of all messages.");
  if (own.problem)
    return [title, card("No lake", { body: empty("lake", "This process has no lake", `${own.problem.message}. Install the extra.`, "pip install 'angarium[lake]'") })];
  if (!own.found) return [title, loading()];
  if (!own.found.tables.length) return [title, summaryTiles(own), neverRan(own.found)];
  return [title, summaryTiles(own), jobs(own.found), tables(own.found), audit(own), report()];
}

function summaryTiles({ found, audit }) {
  const rows = found.tables.reduce((sum, one) => sum + (one.rows ?? 0), 0);
  return tiles(["Behind the journal", found.behind_ms === null ? "–" : duration(found.behind_ms)],
    ["Spark", spark(found), found.running ? null : "angarium serve lake", /failed|off/.test(spark(found)) ? "bad" : ""],
    ["Rows stored", found.tables.length ? count(rows) : "–"], ["Journal", count(model.journal.events), "events ever written"],
    ["Dropped", count(model.journal.dropped), "before any reader read them", model.journal.dropped ? "warn" : ""],
    audit ? ["Last audit", audit.wrong ? count(audit.wrong) : "clean", ago(audit.audited_ms), audit.wrong ? "bad" : ""] : null);
}

/** What the role's last report says: waiting, starting, running, failed, off. */
const spark = (found) => model.processes.find((one) => one.role === "lake")?.figures.state ?? (found.running ? "running" : "not running");

const neverRan = (found) => card("No tables yet", { body: empty("lake", "The lake has not run yet",
  `The lake reads the journal and writes tables to ${found.url}. Until then the journal in Redis keeps events up to its size limit.`,
  "angarium lake run --once") });

function jobs(found) {
  if (!found.jobs.length) return null;
  return card("Jobs of the application", { table: table("Jobs", [
    { label: "Job", cell: (row) => h("span", { class: "mono" }, row.name) },
    { label: "State", cell: (row) => (row.error ? badge("stopped", "bad") : badge("running", "good")) },
    { label: "Batches behind", cell: (row) => count(row.behind), number: true },
    { label: "Reason", cell: (row) => row.error, class: "wrap soft" },
  ], found.jobs, (row) => row.name) });
}

function tables(found) {
  return card("Tables", { note: found.url, table: table("Tables", [
    { label: "Table", cell: (row) => h("span", { class: "mono" }, row.name) },
    { label: "Rows stored", cell: (row) => count(row.rows), number: true },
    { label: "Files", cell: (row) => count(row.files), number: true },
    { label: "Newest", cell: (row) => (row.written_ms ? ago(row.written_ms) : "–") },
    { label: "Contents", cell: (row) => row.meaning, class: "wrap soft" },
  ], found.tables, (row) => row.name) });
}

function audit(own) {
  if (!own.audit)
    return card("Last audit", { body: empty("lake", "No audit has run yet", own.unaudited, "angarium lake audit --now") });
  const outcome = own.audit.wrong ? badge(`${count(own.audit.wrong)} unexplained, doubled or out of order`, "bad")
    : badge("accepted = finished + in flight", "good");
  const number = (label, name, warn) => ({ label, number: true, cell: (row) =>
    (warn && row[name] ? badge(count(row[name]), "bad") : count(row[name])) });
  return card("Last audit", { note: at(own.audit.audited_ms), actions: outcome, table: table("Last audit", [
    { label: "Account", cell: (row) => `${MODULES[row.module] ?? row.module}: ${row.account}` },
    number("Accepted", "accepted"), number("Delivered", "delivered"), number("Expired", "expired"),
    number("Cancelled", "cancelled"), number("Dead", "dead"), number("Failed", "failed"), number("In flight", "in_flight"),
    number("Unexplained", "unexplained", true), number("Doubled", "doubled", true), number("Out of order", "out_of_order", true),
  ], accounts(own.audit.balances), (row) => row.module + row.account) });
}

/** The sum of the windows of each account. */
function accounts(balances) {
  const sums = new Map();
  for (const one of balances) {
    const sum = sums.get(one.module + one.account);
    if (!sum) sums.set(one.module + one.account, { ...one });
    else for (const [name, value] of Object.entries(one)) if (typeof value === "number") sum[name] += value;
  }
  return [...sums.values()];
}

const report = () => card("Report", {
  actions: button("Download the report", () => act(() => download("/v1/lake/report", "angarium-report.html"), () => "The report was downloaded")),
  body: [
    h("p", { class: "soft" }, "Throughput, latency percentiles, retries, the slowest conversations and the busiest keys, as one HTML file."),
    h("code", { class: "command" }, "angarium lake report")] });
