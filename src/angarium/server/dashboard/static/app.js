// The shell: navigation, the current page, the stream of samples, the banner.

import { ApiError, follow, token } from "./api.js";
import { h, listen, on, render } from "./dom.js";
import { absorb, model, recall } from "./model.js";
import { button, icon, loading } from "./parts.js";
import * as conversations from "./pages/conversations.js";
import * as dispatch from "./pages/dispatch.js";
import * as lake from "./pages/lake.js";
import * as overview from "./pages/overview.js";
import * as pickup from "./pages/pickup.js";
import * as routing from "./pages/routing.js";
import * as search from "./pages/search.js";
import * as transactions from "./pages/transactions.js";

// How often the open page reloads its lists, and when it reopens a broken stream.
const RELOAD_MS = 3_000;
const REOPEN_MS = 1_500;
// Samples arrive every second; a connection that is silent for this long is dead.
const SILENCE_MS = 8_000;
const PAGES = { overview, dispatch, routing, conversations, pickup, transactions, lake, search };
const NAMES = {
  overview: "Overview", dispatch: "Dispatch", routing: "Routing", conversations: "Conversations",
  pickup: "Pickup", transactions: "Transactions", lake: "Lake",
};
const THEMES = { auto: "Theme: as the system", light: "Theme: light", dark: "Theme: dark" };

const shell = document.getElementById("shell");
const state = { page: null, name: "", away: null, problem: null, gate: "", visit: 0, receivedMs: Date.now(), stream: new AbortController() };

/** `#/transactions/ID?status=queued` → page, the rest of the path, parameters. */
function address() {
  const [path, parameters] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  const page = Object.hasOwn(PAGES, name) ? name : "overview";
  return { name: page, rest: rest.map(decode), parameters: new URLSearchParams(parameters ?? "") };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function open() {
  const where = address();
  const visit = ++state.visit;
  state.page?.leave?.();
  state.name = where.name;
  state.page = PAGES[where.name].page({
    ...where,
    redraw: () => { if (visit === state.visit) draw(); },
  });
  document.title = `${NAMES[where.name] ?? "Search"} · Angarium`;
  draw();
  // On a small screen the navigation is a strip that may have scrolled past the open page.
  document.querySelector(".nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  void refresh();
}

/** Reload the lists of the open page. */
async function refresh() {
  const visit = state.visit;
  try {
    await state.page.load?.();
    state.problem = null;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 401) notice(error);
    else state.problem = error;
  }
  if (visit === state.visit) draw();
}

function notice(error) {
  if (error.status === 401) {
    state.gate = token.get() ? "The API does not know this token." : "none";
    token.clear();
    state.stream.abort();
  } else {
    state.away = error;
  }
}

function receive(name, value) {
  state.receivedMs = Date.now();
  if (name === "overview") {
    absorb(value);
    if (state.away) void refresh();
    state.away = null;
  } else if (name === "trouble") {
    state.away = new ApiError(value.status, value.code, value.detail);
  }
  draw();
}

/** Read samples. Reopen a stream that ends, unless the tab is hidden. */
async function live() {
  state.stream.abort();
  const stream = (state.stream = new AbortController());
  state.receivedMs = Date.now();
  while (!stream.signal.aborted) {
    try {
      await recall();
      await follow("/v1/live", stream.signal, receive);
    } catch (error) {
      if (stream.signal.aborted) return;
      notice(error instanceof ApiError ? error : new ApiError(0, "unreachable", "The API does not answer"));
      draw();
    }
    await pause(REOPEN_MS);
  }
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function lists() {
  for (;;) {
    await pause(RELOAD_MS);
    if (document.hidden || state.gate) continue;
    if (Date.now() - state.receivedMs > SILENCE_MS) {
      notice(new ApiError(0, "unreachable", "The API does not answer"));
      draw();
      void live();
    } else if (!state.away) await refresh();
  }
}

function draw() {
  if (state.gate) return render(shell, gate());
  render(shell, h("div", { class: "frame" }, side(), content()));
}

function side() {
  return h("aside", { class: "side", key: "side" },
    h("a", { class: "brand", href: "#/" }, h("img", { src: "/assets/icon.svg", alt: "" }), "Angarium"),
    h("nav", { class: "nav", "aria-label": "Modules" }, h("ul", {},
      Object.entries(NAMES).map(([name, text]) => h("li", { key: name },
        h("a", { href: name === "overview" ? "#/" : `#/${name}`, "aria-current": state.name === name ? "page" : null },
          icon(name), text, flag(name)))))),
    h("div", { class: "foot" },
      token.get() ? h("div", { class: "row" }, button("Forget the token", forget, "small")) : null,
      h("div", { class: "row" },
        button(icon("theme"), changeTheme, "plain small", { "aria-label": THEMES[theme()], title: THEMES[theme()] }),
        h("span", { class: "version" }, model.version ? `Version ${model.version}` : ""),
        h("a", { class: "version", href: "/openapi.json" }, "API"))));
}

function flag(name) {
  const own = model.notices.filter((one) => one.module === name);
  if (!own.length) return null;
  const trouble = own.some((one) => one.level === "trouble");
  return h("span", { class: `flag ${trouble ? "trouble" : ""}`, title: own.map((one) => one.text).join("; ") },
    h("span", { class: "sr" }, trouble ? "has trouble" : "needs attention"));
}

function content() {
  return h("div", { class: "content", key: "content" },
    h("div", { class: "top" }, searchForm(), liveState()),
    state.away || state.problem ? banner(state.away ?? state.problem) : null,
    h("main", { id: "main", tabindex: "-1", key: `${state.name}${location.hash}` },
      model.ready || state.page.early ? state.page.view() : loading()));
}

function searchForm() {
  const go = (event) => {
    const id = new FormData(event.target).get("id").trim();
    if (id) location.hash = `#/search?id=${encodeURIComponent(id)}`;
  };
  return h("form", { class: "search", role: "search", on: { submit: go } }, icon("search"),
    h("input", { type: "search", name: "id", placeholder: "Any id: message, transaction, conversation, key …",
      "aria-label": "Search any id", autocomplete: "off", spellcheck: "false" }));
}

function liveState() {
  const words = state.away ? "Not live" : model.ready ? "Live" : "Connecting";
  return h("span", { class: `pulse ${state.away ? "away" : model.ready ? "" : "waiting"}` }, h("i"), words);
}

function banner(error) {
  return h("div", { class: "banner", role: "alert" }, icon("alert"),
    h("div", {}, error.code === "redis_unavailable" ? "Redis is away. " : `${error.message}. `,
      h("span", {}, error.hint)));
}

function gate() {
  const enter = (event) => {
    token.set(new FormData(event.target).get("token").trim());
    state.gate = "";
    open();
    void live();
  };
  return h("div", { class: "gate", key: "gate" }, h("section", { class: "card" },
    h("img", { src: "/assets/icon.svg", alt: "" }),
    h("h1", {}, "This Angarium wants a token"),
    h("p", {}, "The token is stored in this tab only, until the tab is closed. `angarium token create` makes one."),
    state.gate === "none" ? null : h("p", { class: "error", role: "alert" }, state.gate),
    h("form", { on: { submit: enter } },
      h("label", { class: "sr", for: "token" }, "Token"),
      h("input", { id: "token", name: "token", type: "password", required: true, autocomplete: "off", placeholder: "Token" }),
      h("button", { class: "primary", type: "submit" }, "Enter"))));
}

function forget() {
  token.clear();
  state.stream.abort();
  state.gate = "none";
  draw();
}

const theme = () => document.documentElement.dataset.theme ?? "auto";

function changeTheme() {
  const next = { auto: "light", light: "dark", dark: "auto" }[theme()];
  if (next === "auto") {
    localStorage.removeItem("angarium.theme");
    delete document.documentElement.dataset.theme;
  } else {
    localStorage.setItem("angarium.theme", next);
    document.documentElement.dataset.theme = next;
  }
  draw();
}

function keys(event) {
  const typing = event.target.closest("input, textarea, select");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    document.querySelector(".search input")?.focus();
  }
}

listen(document.body);
// The link's own address would select a page.
on(document.querySelector(".skip"), {
  click: (event) => {
    event.preventDefault();
    document.getElementById("main")?.focus();
  },
});
addEventListener("hashchange", () => {
  open();
  document.getElementById("main")?.focus({ preventScroll: true });
  scrollTo(0, 0);
});
addEventListener("keydown", keys);
// A browser opens few connections to one server, so a hidden tab closes its own.
addEventListener("visibilitychange", () => {
  if (document.hidden) state.stream.abort();
  else if (!state.gate) {
    void live();
    void refresh();
  }
});
addEventListener("resize", draw);
open();
void live();
void lists();
