// Formats numbers, times and sizes. Times are the server's; `clock` knows the difference.

const number = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const moment = new Intl.DateTimeFormat(undefined, {
  month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit",
  hourCycle: "h23",
});
const hour = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit", minute: "2-digit", hourCycle: "h23",
});

export const clock = {
  aheadMs: 0,
  set(serverMs) {
    this.aheadMs = serverMs - Date.now();
  },
  now() {
    return Date.now() + this.aheadMs;
  },
};

export const count = (value) => number.format(value ?? 0);
export const short = (value) => (value < 10_000 ? number.format(value) : compact.format(value));
export const many = (value, one, more = `${one}s`) => `${count(value)} ${value === 1 ? one : more}`;

export function rate(perSecond) {
  if (!perSecond) return "0/s";
  if (perSecond < 10) return `${perSecond.toFixed(1)}/s`;
  return `${short(Math.round(perSecond))}/s`;
}

// A time that was never set counts from 1970: nothing here is older than ten years.
const MS_MAX = 10 * 365 * 86_400_000;

export function duration(ms) {
  if (ms === null || ms === undefined || ms > MS_MAX) return "–";
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} days`;
}

/** The age of something that happened so long ago. */
export const since = (ms) => (duration(ms) === "–" ? "–" : `${duration(ms)} ago`);
export const ago = (ms) => (ms && clock.now() - ms <= MS_MAX ? `${duration(clock.now() - ms)} ago` : "never");
export const ahead = (ms) =>
  ms > clock.now() ? `in ${duration(ms - clock.now())}` : "any moment";
export const at = (ms) => (ms ? moment.format(ms) : "–");
/** With milliseconds: the events of one id are often less than a second apart. */
export const exactly = (ms) => `${moment.format(ms)}.${String(ms % 1000).padStart(3, "0")}`;
export const hourOf = (ms) => hour.format(ms);

export function bytes(value) {
  if (value < 1024) return `${value} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let size = value / 1024;
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) [size, unit] = [size / 1024, unit + 1];
  return `${size < 10 ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
}

/** The beginning and the end of a long id. */
export const brief = (id, most = 22) =>
  id.length <= most ? id : `${id.slice(0, Math.ceil(most * 0.55))}…${id.slice(-Math.floor(most * 0.35))}`;

/** Indented JSON; other text unchanged. */
export function pretty(text) {
  try {
    return JSON.stringify(typeof text === "string" ? JSON.parse(text) : text, null, 2);
  } catch {
    return String(text);
  }
}
