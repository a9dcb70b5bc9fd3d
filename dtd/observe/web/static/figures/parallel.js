// Parallel coordinates: an axis for each setting and one for the value, a line for each trial.
//
// The chart library draws these by code that it makes at run time, which the page's policy forbids.

import { h, s } from "../dom.js";
import { NOTHING, number, shown } from "../words.js";

const [HEIGHT, TOP, BOTTOM, SIDE, LEAST_GAP] = [360, 52, 22, 74, 112];
const LEAST_DRAG = 0.02;
const KEY_STEP = 0.1;
const MOST_TICKS = 5;

// One axis: `of` takes what it shows from a trial, `at` tells where that lies, from 0 to 1.
function axis(name, of, values, { log = false, choices = null, kind = "setting" } = {}) {
  const known = values.filter((one) => one !== null && one !== undefined);
  if (choices) {
    const place = new Map(choices.map((one, at) => [String(one), choices.length === 1 ? 0.5 : at / (choices.length - 1)]));
    return { name, of, kind, at: (value) => place.get(String(value)) ?? null, ticks: choices.map((one) => [place.get(String(one)), shown(one)]) };
  }
  const scale = log ? Math.log : (value) => value;
  const [least, most] = [Math.min(...known), Math.max(...known)];
  const [low, high] = [scale(least), scale(most)];
  const at = (value) => {
    if (typeof value !== "number") return null;
    return high > low ? (scale(value) - low) / (high - low) : 0.5;
  };
  const marked = high > low ? marks(least, most, log) : [least];
  const ticks = marked.map((value) => [at(value), number(value, 3)]);
  return { name, of, kind, at, ticks };
}

// Where an axis is marked: at powers of ten, at whole numbers, or evenly; at both ends in any case.
function marks(low, high, log) {
  const even = (value) => low + (value / (MOST_TICKS - 1)) * (high - low);
  if (log && high >= 100 * low) {
    const powers = [];
    for (let power = Math.ceil(Math.log10(low) - 1e-9); power <= Math.log10(high) + 1e-9; power += 1) powers.push(10 ** power);
    const apart = (one) => one > 1.5 * low && one < high / 1.5;
    return [low, ...powers.filter(apart), high];
  }
  const places = Array.from({ length: MOST_TICKS }, (_, place) => (log ? low * (high / low) ** (place / (MOST_TICKS - 1)) : even(place)));
  return Number.isInteger(low) && Number.isInteger(high) ? [...new Set(places.map(Math.round))] : places;
}

export function axesOf(sweep) {
  const found = Object.entries(sweep.space).map(([name, one]) => axis(name, (trial) => trial.params[name],
    one.choices?.length ? [] : [one.low, one.high], { log: one.log, choices: one.choices?.length ? one.choices : null }));
  const values = sweep.trials.map((one) => one.value).filter((one) => one !== null);
  if (values.length) found.push(axis(sweep.metric, (trial) => trial.value, values, { kind: "value" }));
  return found;
}

const y = (part) => TOP + (1 - part) * (HEIGHT - TOP - BOTTOM);

// A trial's line; one that has no value yet ends at its last setting.
function path(axes, trial, x) {
  const points = axes.map((one, index) => [x(index), one.at(one.of(trial))]).filter(([, part]) => part !== null);
  return points.map(([left, part], index) => {
    if (!index) return `M${left},${y(part).toFixed(1)}`;
    const [before, from] = points[index - 1];
    const middle = (before + left) / 2;
    return `C${middle},${y(from).toFixed(1)} ${middle},${y(part).toFixed(1)} ${left},${y(part).toFixed(1)}`;
  }).join("");
}

// `room` is how wide it may be; with many axes it is wider, and is scrolled.
export function parallel(sweep, axes, kept, seen, { room, light, narrow }) {
  const gap = Math.max(LEAST_GAP, (room - 2 * SIDE) / Math.max(1, axes.length - 1));
  const x = (index) => SIDE + index * gap;
  const width = Math.round(x(axes.length - 1) + SIDE);
  const value = axes.find((one) => one.kind === "value");
  const goodness = (trial) => {
    const part = value?.at(trial.value) ?? null;
    return part === null ? null : sweep.direction === "maximize" ? part : 1 - part;
  };
  const ranked = sweep.trials.filter((one) => kept.has(one.number)).sort((a, b) => (goodness(a) ?? -1) - (goodness(b) ?? -1));
  const lit = ranked.some((one) => one.number === seen.lit);
  const line = (trial) => s("path", {
    "data-key": `line-${trial.number}`, "data-trial": trial.number,
    class: ["trial", goodness(trial) === null && "open", trial.number === sweep.best?.number && "best", trial.number === seen.lit && "lit"].filter(Boolean).join(" "),
    css: { "--share": `${Math.round(100 * (goodness(trial) ?? 0))}%` }, d: path(axes, trial, x),
    onpointerenter: () => light(trial.number), onpointerleave: () => light(null),
  }, s("title", {}, told(sweep, trial)));
  const drawing = s("svg", { class: `parallel${lit ? " dim" : ""}`, viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "group", "aria-label": described(sweep, axes, kept) },
    s("g", { "data-key": "trials", "aria-hidden": "true" }, ranked.map(line)),
    axes.map((one, index) => axisOf(one, x(index), index % 2, seen.ranges[one.name], narrow)));
  return [h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Settings and values of trials" }, drawing),
    value && h("p", { class: "legend scale", "aria-hidden": "true" }, "worse", h("i", {}), "better", h("b", {}, "the best trial"), ranked.some((one) => goodness(one) === null) && h("u", {}, "no value yet"))];
}

function axisOf(one, left, odd, range, narrow) {
  const from = range ?? [0, 1];
  const words = one.name.length > 18 ? `…${one.name.slice(-17)}` : one.name;
  return s("g", { "data-key": `axis-${one.name}`, class: `axis ${one.kind}` },
    s("line", { x1: left, x2: left, y1: y(1), y2: y(0) }),
    s("text", { class: "name", "aria-hidden": "true", x: left, y: odd ? 16 : 30, "text-anchor": "middle" }, words, s("title", {}, one.name)),
    one.ticks.map(([part, text]) => [
      s("line", { class: "tick", x1: left - 4, x2: left, y1: y(part), y2: y(part) }),
      s("text", { class: "tick", "aria-hidden": "true", x: left - 7, y: y(part) + 4, "text-anchor": "end" }, text.length > 10 ? `${text.slice(0, 9)}…` : text)]),
    s("rect", { class: "range", visibility: range ? "visible" : "hidden", x: left - 7, width: 14, y: y(from[1]), height: Math.max(3, y(from[0]) - y(from[1])), rx: 3 }),
    s("rect", {
      class: "grip", x: left - 14, width: 28, y: y(1) - 6, height: y(0) - y(1) + 12, rx: 6, tabindex: "0", role: "slider",
      "aria-label": `Part of ${one.name}: up raises its lower end, down lowers its upper end, Escape takes all`,
      "aria-valuemin": "0", "aria-valuemax": "100", "aria-valuenow": Math.round(100 * from[0]), "aria-valuetext": range ? `from ${Math.round(100 * from[0])} to ${Math.round(100 * from[1])} % of the axis` : "all",
      onpointerdown: (event) => drag(event, one.name, narrow), onkeydown: (event) => press(event, one.name, from, narrow),
    }));
}

// The same with keys, a tenth of the axis at a time.
function press(event, name, [low, high], narrow) {
  if (!["ArrowUp", "ArrowDown", "Escape"].includes(event.key)) return;
  event.preventDefault();
  const next = event.key === "ArrowUp" ? [Math.min(low + KEY_STEP, high), high] : [low, Math.max(high - KEY_STEP, low)];
  narrow(name, event.key === "Escape" ? null : next);
}

// A range is drawn from where the pointer went down to where it goes up; a mere click clears it.
function drag(event, name, narrow) {
  event.preventDefault();
  const drawing = event.target.ownerSVGElement;
  const part = (at) => {
    const point = new DOMPoint(at.clientX, at.clientY).matrixTransform(drawing.getScreenCTM().inverse());
    return Math.max(0, Math.min(1, (y(0) - point.y) / (y(0) - y(1))));
  };
  const begin = part(event);
  const moved = (at) => {
    const end = part(at);
    narrow(name, Math.abs(end - begin) < LEAST_DRAG ? null : [Math.min(begin, end), Math.max(begin, end)]);
  };
  const stop = new AbortController();
  addEventListener("pointermove", moved, { signal: stop.signal });
  for (const ended of ["pointerup", "pointercancel"]) addEventListener(ended, (at) => { stop.abort(); if (ended === "pointerup") moved(at); }, { signal: stop.signal });
}

function told(sweep, trial) {
  const settings = Object.entries(trial.params).map(([name, one]) => `${name} = ${shown(one)}`).join(", ");
  return `trial ${trial.number}, ${trial.state}: ${sweep.metric} ${trial.value === null ? NOTHING : number(trial.value)}; ${settings}`;
}

function described(sweep, axes, kept) {
  const best = sweep.trials.find((one) => one.number === sweep.best?.number);
  return `Parallel coordinates of ${kept.size} trials over ${axes.map((one) => one.name).join(", ")}.${best ? ` The best: ${told(sweep, best)}.` : ""} The table below has all of them.`;
}
