// A list that is read from the server page by page, for a table and its pager.

import { get } from "./api.js";

// On a small screen a row is a block of lines, so pages are shorter.
const SMALL = matchMedia("(max-width: 560px)");

/** `member` is the answer's field with the rows. */
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
