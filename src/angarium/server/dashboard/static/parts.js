// Components: headings, cards, tables, tiles, empty states, dialogs, toasts.

import { h, s } from "./dom.js";
import { count } from "./format.js";

const PATHS = {
  overview: "M3 11.5 12 4l9 7.5M6 10v9h12v-9",
  dispatch: "M4 12h6M10 12l8-6M10 12l8 6M10 12h8",
  routing: "M5 5v5a3 3 0 0 0 3 3h8a3 3 0 0 1 3 3v3M19 5v3M5 19v-3",
  conversations: "M4 5h12v8H9l-4 4v-4H4zM19 9h1v8h-1v3l-3-3h-4",
  pickup: "M3 12l3-7h12l3 7v7H3zM3 12h5l1.5 3h5L16 12h5",
  transactions: "M5 6h5v5H5zM14 13h5v5h-5zM10 8.500h4.500a2 2 0 0 1 2 2V13",
  lake: "M3 9c3 0 3-2 6-2s3 2 6 2 3-2 6-2M3 14c3 0 3-2 6-2s3 2 6 2 3-2 6-2M3 19c3 0 3-2 6-2s3 2 6 2 3-2 6-2",
  search: "M11 4a7 7 0 1 1 0 14 7 7 0 0 1 0-14M16 16l5 5",
  alert: "M12 4 2.500 20h19zM12 10v4M12 17v.500",
  theme: "M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16",
};

export const icon = (name) =>
  s("svg", { viewBox: "0 0 24 24", fill: "none", stroke: "currentColor", "stroke-width": 1.8,
    "stroke-linecap": "round", "stroke-linejoin": "round", "aria-hidden": "true" },
    s("path", { d: PATHS[name] }));

export const heading = (title, text, ...actions) =>
  h("div", { class: "heading" },
    h("div", {}, h("h1", {}, title), text ? h("p", {}, text) : null),
    actions.length ? h("div", { class: "actions" }, actions) : null);

export const card = (title, { note, actions, body, table, key } = {}, ...more) =>
  h("section", { class: "card", key: key ?? title, "aria-label": title },
    h("header", {}, h("h2", {}, title), note ? h("p", {}, note) : null,
      actions ? h("div", { class: "actions" }, actions) : null),
    table ?? null,
    body ? h("div", { class: "body" }, body) : null,
    more);

/** A table that becomes blocks on a small screen. Columns: label, cell(row), number. */
export const table = (label, columns, rows, key) =>
  h("div", { class: "table", tabindex: "0", role: "region", "aria-label": label },
    h("table", { class: "stack" },
      h("thead", {}, h("tr", {}, columns.map((column) =>
        h("th", { scope: "col", class: column.number ? "num" : (column.class ?? "") }, column.label)))),
      h("tbody", {}, rows.map((row) =>
        h("tr", { key: key(row) }, columns.map((column) =>
          h("td", { "data-label": column.label,
            class: column.number ? "num" : (column.class ?? "") }, column.cell(row))))))));

export const tiles = (...items) =>
  h("dl", { class: "tiles" }, items.filter(Boolean).map(([label, value, note, tone]) =>
    h("div", { class: `tile ${tone ?? ""}`, key: label },
      h("dt", {}, label), h("dd", {}, value, note ? h("small", {}, note) : null))));

export const badge = (text, tone) => h("span", { class: `badge ${tone ?? ""}` }, text);

export const empty = (name, title, text, command) =>
  h("div", { class: "empty" }, icon(name), h("h3", {}, title), h("p", {}, text),
    command ? h("code", { class: "command" }, command) : null);

export const facts = (...pairs) =>
  h("dl", { class: "facts" }, pairs.filter((pair) => pair && pair[1] !== null && pair[1] !== undefined)
    .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

export const button = (text, click, look = "", more = {}) =>
  h("button", { type: "button", class: look, on: { click }, ...more }, text);

export const loading = () => h("p", { class: "loading" }, "Loading …");

/** The page's number and size, with buttons for the next and the first page. */
export const pager = (list, noun) =>
  list.next || list.page > 1
    ? h("div", { class: "more" },
        h("span", {}, `Page ${list.page}, ${count(list.rows.length)} ${noun}`),
        h("span", { class: "actions" },
          list.page > 1 ? button("First page", list.first, "small") : null,
          list.next ? button("Next page", list.forward, "small") : null))
    : null;

/** Ask before an action that can't be undone. Resolves to true if confirmed. */
export function confirm(title, text, verb) {
  return new Promise((resolve) => {
    const close = (answer) => () => {
      dialog.close();
      dialog.remove();
      resolve(answer);
    };
    const dialog = h("dialog", { "aria-label": title },
      h("h2", {}, title), h("p", {}, text),
      h("div", { class: "actions" },
        button("Leave it", close(false)),
        button(verb, close(true), "danger primary")));
    dialog.addEventListener("cancel", close(false));
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Asks for a text; null if the dialog was left. */
export function ask(title, text, verb, label) {
  return new Promise((resolve) => {
    const field = h("textarea", { rows: 6, "aria-label": label });
    const close = (answer) => () => {
      const value = answer ? field.value : null;
      dialog.close();
      dialog.remove();
      resolve(value);
    };
    const dialog = h("dialog", { "aria-label": title },
      h("h2", {}, title), h("p", {}, text), field,
      h("div", { class: "actions" }, button("Leave it", close(false)), button(verb, close(true), "primary")));
    dialog.addEventListener("cancel", close(false));
    document.body.append(dialog);
    dialog.showModal();
  });
}

const TOAST_MS = 6_000;

export function toast(text, detail, bad = false) {
  const element = h("div", { class: `toast ${bad ? "bad" : ""}`, role: bad ? "alert" : null },
    button("Close", () => element.remove(), "plain small"),
    h("b", {}, text), detail ? h("p", {}, detail) : null);
  document.getElementById("toasts").append(element);
  // Errors stay until they are closed.
  if (!bad) setTimeout(() => element.remove(), TOAST_MS);
}

/** Run an action, and show its result or its error with a hint. */
export async function act(doing, done) {
  try {
    const answer = await doing();
    toast(typeof done === "function" ? done(answer) : done);
    return true;
  } catch (error) {
    toast(error.message, error.hint ?? "", true);
    return false;
  }
}
