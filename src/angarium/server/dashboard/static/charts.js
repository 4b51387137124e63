// SVG charts: lines over time, and bars by interval.

import { h, s } from "./dom.js";
import { duration, hourOf, short } from "./format.js";

const LEFT = 38;
const BOTTOM = 20;

/** A round number at or above the value, for readable labels. */
export function ceiling(value) {
  if (value <= 4) return 4;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 8, 10].map((step) => step * power).find((step) => step >= value);
}

/**
 * Series over time. `times` are milliseconds, oldest first. A series has a name and one value for
 * each time, or null. Kinds: "line", and "bars" side by side, with sums in the legend. `width` is
 * close to the width on the screen, so that text keeps its size.
 */
export function chart({ title, times, series, kind = "line", width = 560, height = 170, unit = short, key }) {
  const most = Math.max(0, ...series.flatMap((one) => one.values.filter((value) => value !== null)));
  const scale = {
    top: ceiling(most), width, height: height - BOTTOM,
    first: times[0] ?? 0, last: times.at(-1) ?? 1, count: times.length,
  };
  const shown = kind === "bars" ? bars(times, series, scale) : lines(times, series, scale);
  const legendText = (one) => unit(kind === "bars" ? sum(one.values) : last(one.values));
  const words = series.map((one) => `${one.name} ${legendText(one)}`).join(", ");
  return h("figure", { class: "chart", key: key ?? title,
    on: { pointermove: (event, at) => hover(event, at, { times, series, scale, unit, kind }),
      pointerout: (event, at) => { if (!at.contains(event.relatedTarget)) unhover(at); } } },
    s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}: ${words}` },
      rules(scale, unit), shown, moments(times, scale, height)),
    h("ul", { class: "legend" }, series.map((one, number) =>
      h("li", { class: `c${number + 1}` }, h("i"), one.name, h("b", {}, legendText(one))))));
}

const sum = (values) => values.reduce((one, other) => one + other, 0);
const last = (values) => values.findLast((value) => value !== null && value !== undefined) ?? 0;

function place(time, scale) {
  const span = scale.last - scale.first || 1;
  return LEFT + ((time - scale.first) / span) * (scale.width - LEFT);
}

const rise = (value, scale) => scale.height - (value / scale.top) * (scale.height - 6);
const digits = (value) => value.toFixed(1);

function rules(scale, unit) {
  return [0, 0.5, 1].map((share) => {
    const y = rise(scale.top * share, scale);
    return [
      s("line", { class: "rule", x1: LEFT, x2: scale.width, y1: y, y2: y }),
      s("text", { class: "label", x: LEFT - 7, y: y + 4, "text-anchor": "end" },
        unit(scale.top * share).replace("/s", "")),
    ];
  });
}

function moments(times, scale, height) {
  if (times.length < 2) return null;
  const span = scale.last - scale.first;
  const word = (time) => span > 1_800_000 ? hourOf(time)
    : time === scale.last ? "now" : `${duration(scale.last - time).replace(/ 0 s$/, "")} ago`;
  return [[scale.first, "start", LEFT], [scale.first + span / 2, "middle", null], [scale.last, "end", scale.width]]
    .map(([time, anchor, x]) => s("text", { class: "label", x: x ?? place(time, scale), y: height - 3,
      "text-anchor": anchor }, word(time)));
}

function lines(times, series, scale) {
  return series.map((one, number) => {
    const points = one.values
      .map((value, at) => [value, times[at]])
      .filter(([value]) => value !== null && value !== undefined)
      .map(([value, time]) => `${digits(place(time, scale))} ${digits(rise(value, scale))}`);
    if (points.length < 2) return null;
    const ends = [points[0], points.at(-1)].map((point) => point.split(" ")[0]);
    return s("g", { class: `c${number + 1}`, key: one.name },
      number === 0 ? s("path", { class: "area",
        d: `M${ends[0]} ${scale.height} L${points.join(" L")} L${ends[1]} ${scale.height}Z` }) : null,
      s("path", { class: "line", d: `M${points.join(" L")}` }));
  });
}

function bars(times, series, scale) {
  const slot = (scale.width - LEFT) / Math.max(1, times.length);
  const width = Math.max(1, (slot * 0.8) / series.length);
  return series.map((one, number) =>
    s("g", { class: `c${number + 1}`, key: one.name }, one.values.map((value, at) => {
      if (!value) return null;
      const high = rise(value, scale);
      return s("rect", { class: "bar", x: digits(LEFT + at * slot + slot * 0.1 + number * width), y: digits(high),
        width: digits(width), height: digits(Math.max(0.5, scale.height - high)), rx: 1 });
    })));
}

function hover(event, figure, { times, series, scale, unit, kind }) {
  const svg = figure.querySelector("svg");
  const frame = svg.getBoundingClientRect();
  const x = ((event.clientX - frame.left) / frame.width) * scale.width;
  if (!times.length || x < LEFT) return unhover(figure);
  const share = Math.min(0.9999, Math.max(0, (x - LEFT) / (scale.width - LEFT)));
  const at = kind === "bars" ? Math.floor(share * times.length) : Math.round(share * (times.length - 1));
  unhover(figure);
  const box = h("div", { class: "hover" }, h("div", { class: "faint" }, hourOf(times[at])),
    series.map((one) => h("div", {}, `${one.name} `, h("b", {}, unit(one.values[at] ?? 0)))));
  box.style.left = share > 0.6 ? "" : `${((x / scale.width) * 100 + 2).toFixed(1)}%`;
  box.style.right = share > 0.6 ? `${(100 - (x / scale.width) * 100 + 2).toFixed(1)}%` : "";
  figure.append(box);
  const line = kind === "bars" ? LEFT + (at + 0.5) * ((scale.width - LEFT) / times.length) : place(times[at], scale);
  svg.append(s("line", { class: "at", x1: line, x2: line, y1: 0, y2: scale.height }));
}

function unhover(figure) {
  for (const left of figure.querySelectorAll(".hover, .at")) left.remove();
}
