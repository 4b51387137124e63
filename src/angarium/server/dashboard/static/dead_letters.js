// The dead letters of a module: the same card and actions in every module.

import { part, post, query, remove } from "./api.js";
import { h } from "./dom.js";
import { ago, at, brief, count } from "./format.js";
import { paged } from "./paging.js";
import { act, button, card, confirm, empty, loading, pager, table } from "./parts.js";

/**
 * `first` and `columns` (of the rows) stand before and after the columns that every dead letter has.
 * `none` is the text of an empty list; without it there is no card then. `alike` is the part of the reason that
 * letters which died alike share. `more` are further buttons of a row.
 */
export function deadLetters({ path, title, note, none, first, columns = () => [], reason = (row) => row.reason,
  alike = (row) => row.reason, usable = () => true, dropped = "is removed with its content. This can't be undone; the journal keeps its id and the reason.", more = () => [], redraw }) {
  const list = paged(path, "letters", () => ({}), redraw);
  const change = async (doing, done) => {
    await act(doing, done);
    await list.load().catch(() => {});
    // The last rows of a later page are gone: back to the first.
    if (!list.rows.length && list.page > 1) await list.first().catch(() => {});
    redraw();
  };
  const retried = (answer) => `${count(answer.retried)} queued again${answer.unusable ? `, ${count(answer.unusable)} can't be retried` : ""}`;

  const retryAll = async (text) => {
    const about = text ? `All whose reason contains: ${text}` : "All of them are queued again, with all their tries.";
    if (await confirm(text ? "Retry all that died alike?" : "Retry all of them?", about, "Retry"))
      await change(() => post(`${path}/retry${query({ reason: text })}`), retried);
  };
  const drop = async (row) => {
    if (await confirm("Drop it for good?", `${row.id} ${dropped}`, "Drop"))
      await change(() => remove(`${path}/${part(row.id)}`), `${brief(row.id)} is dropped`);
  };
  const actions = (row) => (row.id ? h("div", { class: "actions" },
    button("Retry", () => change(() => post(`${path}/${part(row.id)}/retry`), `${brief(row.id)} is queued again`), "small",
      { disabled: !usable(row), "aria-label": `Retry ${row.id}` }),
    ...more(row, change),
    button("Retry alike", () => retryAll(alike(row)), "small", { disabled: !alike(row), "aria-label": `Retry all with the reason of ${row.id}` }),
    button("Drop", () => drop(row), "small danger", { "aria-label": `Drop ${row.id}` })) : null);

  const view = () => {
    if (!list.read) return none ? loading() : null;
    if (!list.rows.length && list.page === 1) return none ? card(title, { key: path, body: empty(...none) }) : null;
    return card(title, { note, key: path, actions: button("Retry all", () => retryAll("")), table: table(title, [
      first,
      { label: "Died", cell: (row) => h("span", { title: at(row.at_ms) }, ago(row.at_ms)), class: "nowrap" },
      { label: "Tries", cell: (row) => count(row.tries), number: true },
      { label: "Reason", cell: reason, class: "wrap" },
      ...columns(list.rows),
      { label: "", cell: actions },
    ], list.rows, (row) => row.id || JSON.stringify(row)) }, pager(list, "dead letters"));
  };
  return { list, load: list.load, view, change };
}
