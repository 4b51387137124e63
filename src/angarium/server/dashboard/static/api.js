// Calls of the JSON API and its event streams, with the token; one class of errors.

const TOKEN = "angarium.token";

// The next action for errors whose text does not name one.
const HINTS = {
  redis_unavailable: "Redis does not answer. This page recovers automatically.",
  database_unavailable: "The database does not answer. Try again later.",
  outcome_unknown: "The change may have been made. Check before you repeat it.",
  not_found: "It may have been handled meanwhile; the list is up to date.",
  dead_letter_unknown: "Somebody has seen to it already; the list shows what is there now.",
  conflict: "Its state has changed meanwhile. Check it.",
  transaction_finished: "The transaction has already ended.",
  overloaded: "Too many requests. Try again in a moment.",
  forbidden: "The token's scope does not allow this. Use one with the scope that is named.",
  tenant_foreign: "This token belongs to one tenant. Use one without a tenant here.",
  unreachable: "Is the process still running? This page recovers automatically.",
};

export class ApiError extends Error {
  constructor(status, code, detail) {
    super(detail);
    this.status = status;
    this.code = code;
  }
  get hint() {
    return HINTS[this.code] ?? (this.status === 403 ? HINTS.forbidden : "");
  }
  /** The server or Redis is unavailable; the request itself is not at fault. */
  get away() {
    return this.status === 0 || this.status === 502 || this.status === 503 || this.status === 504;
  }
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN) ?? "",
  set: (value) => sessionStorage.setItem(TOKEN, value),
  clear: () => sessionStorage.removeItem(TOKEN),
};

function headers(more) {
  const own = token.get() ? { authorization: `Bearer ${token.get()}` } : {};
  return { accept: "application/json", ...own, ...more };
}

async function refusal(response) {
  try {
    const problem = await response.json();
    return new ApiError(response.status, problem.code ?? "", problem.detail ?? problem.title ?? "");
  } catch {
    return new ApiError(response.status, "", `the server answered with ${response.status}`);
  }
}

async function answer(method, path, body) {
  const sent = body === undefined ? {} : { body: JSON.stringify(body) };
  const kind = body === undefined ? {} : { "content-type": "application/json" };
  let response;
  try {
    response = await fetch(path, { method, headers: headers(kind), cache: "no-store", ...sent });
  } catch {
    throw new ApiError(0, "unreachable", "the API does not answer");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function ask(method, path, body) {
  const response = await answer(method, path, body);
  return response.status === 204 ? null : response.json();
}

/** Download as a file. A plain link can't carry the token. */
export async function download(path, name) {
  const response = await answer("GET", path);
  const url = URL.createObjectURL(await response.blob());
  const link = Object.assign(document.createElement("a"), { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

export const get = (path, parameters) => ask("GET", path + query(parameters));
export const post = (path, body) => ask("POST", path, body);
export const put = (path, body) => ask("PUT", path, body);
export const remove = (path) => ask("DELETE", path);

export function query(parameters) {
  const given = Object.entries(parameters ?? {}).filter(
    ([, value]) => value !== undefined && value !== null && value !== "",
  );
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

/** Encode an id as one part of a path, slashes and dots included. */
export const part = (id) => encodeURIComponent(id).replace(/^\.+$/, (dots) => dots.replaceAll(".", "%2E"));

/** Server-sent events by fetch, because an EventSource can't carry a token. Ends when aborted. */
export async function follow(path, signal, receive) {
  const response = await fetch(path, { headers: headers({ accept: "text/event-stream" }), signal });
  if (!response.ok) throw await refusal(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const events = text.split(/\r?\n\r?\n/);
    text = events.pop();
    for (const event of events) handle(event, receive);
  }
}

function handle(event, receive) {
  const lines = event.split(/\r?\n/);
  const data = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
  const name = lines.find((line) => line.startsWith("event:"))?.slice(6).trim() ?? "message";
  if (data.length) receive(name, JSON.parse(data.join("\n")));
}
