// Figures in words, as dtdctl shows them.

export const NOTHING = "–";

export function number(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return value.toLocaleString("en");
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2).replace("e+", "e");
  return String(Number(value.toPrecision(digits)));
}

export const whole = (value) =>
  value === null || value === undefined ? NOTHING : Math.round(value).toLocaleString("en");

// Members of a job's generation without its parameter servers.
export const trainers = (members, servers) =>
  members === null || members === undefined ? members : members - (servers ?? 0);

function scaled(value, units, factor, unit) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  let place = 0;
  while (Math.abs(value) >= factor && place < units.length - 1) { value /= factor; place += 1; }
  const digits = place === 0 || value >= 100 ? 0 : 1;
  return `${value.toFixed(digits)} ${units[place]}${unit}`;
}

export const bytes = (value) => scaled(value, ["", "Ki", "Mi", "Gi", "Ti"], 1024, "B");
export const bandwidth = (value) => (value > 0 ? scaled(value, ["", "k", "M", "G", "T"], 1000, "B/s") : NOTHING);
export const rate = (value) =>
  value > 0 ? `${value >= 1e5 ? scaled(value, ["", "k", "M"], 1000, "").trim() : whole(value)} rows/s` : NOTHING;

// Seconds, short: 3.2 ms, 1.4 s, 5 min, 2 h 10 min, 3 d 4 h.
export function span(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  if (value < 1) return `${(value * 1000).toFixed(value < 0.1 ? 1 : 0)} ms`;
  if (value < 100) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  const minutes = Math.round(value / 60);
  if (minutes < 100) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

// Seconds of a stopwatch: 0.22 s; long ones as a span.
export const seconds = (value) => (value < 10 ? `${value.toFixed(2)} s` : span(value));

export function clock(unix) {
  if (!unix) return NOTHING;
  const at = new Date(unix * 1000);
  const time = at.toLocaleTimeString("en-GB");
  return at.toDateString() === new Date().toDateString() ? time : `${at.toISOString().slice(0, 10)} ${time}`;
}

export function ago(unix) {
  return unix ? `${span(Math.max(0, Date.now() / 1000 - unix))} ago` : NOTHING;
}

export const counted = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
export const kind = (name) => String(name).replaceAll("_", " ");

export function shown(value) {
  if (value === null || value === undefined || value === "") return NOTHING;
  if (typeof value === "object") return JSON.stringify(value);
  return typeof value === "number" ? number(value, 6) : String(value);
}
