// A list read from the server page by page, in a form that a table and its pager can use.

import { get } from "./api.js";

// A row is a block of lines on a small screen.
const SMALL = matchMedia("(max-width: 560px)");

/** `member` is the name under which the answer holds the rows. */
export function paged(path, member, parameters, redraw) {
  const list = {
    answer: null, rows: [], next: null, page: 1, after: null, read: false,
    async load() {
      const answer = await get(path, { limit: SMALL.matches ? 20 : 50, ...parameters(), after: list.after });
      list.answer = answer;
      list.rows = answer[member];
      list.next = answer.next;
      list.read = true;
    },
    async forward() {
      list.after = list.next;
      list.page += 1;
      await list.load();
      redraw();
    },
    async first() {
      list.after = null;
      list.page = 1;
      await list.load();
      redraw();
    },
  };
  return list;
}
