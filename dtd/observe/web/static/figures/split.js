// Where the time of a step goes: of each worker now, and of rank 0 by step.

import { h } from "../dom.js";
import { chartCard } from "../parts.js";
import { known, newest } from "./points.js";
import { STEP_PARTS } from "../step_parts.js";
import { span } from "../words.js";

const OTHER = { field: "", name: "other", tint: "part-other" };
const PARTS = [...STEP_PARTS.map((one) => ({ ...one, tint: `part-${one.key}` }))];
const MS = 1000;

const legend = () => h("div", { class: "legend", "aria-hidden": "true" },
  [...PARTS, OTHER].map((one) => h("span", { css: { "--tint": `var(--${one.tint})` } }, one.name)));

export function split(figures) {
  const workers = [...figures?.workers ?? []].sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
  if (!workers.length) return h("p", { class: "empty" }, "No step was measured yet.");
  const slowest = Math.max(...workers.map((one) => one.step_s));
  return [legend(), h("div", { class: "split long", tabindex: "0", role: "list", "aria-label": "Time of a step, by worker" }, workers.map((one) => {
    const times = PARTS.map(({ field, name, tint }) => [Math.max(0, one[field] ?? 0), name, tint]);
    const told = times.map(([value, name]) => `${name} ${span(value)}`).join(", ");
    return [
      h("span", { role: "listitem", "data-key": `split-${one.name}` }, one.name, h("span", { class: "unseen" }, `: ${told}`)),
      h("span", { class: "parts", title: told, css: { width: `${(100 * one.step_s) / slowest}%` } },
        times.map(([value, , tint]) => h("i", { css: { "--tint": `var(--${tint})`, width: `${(100 * value) / one.step_s}%` } }))),
      h("span", { class: "num soft" }, span(one.step_s)),
    ];
  }))];
}

export function splitCard(curves) {
  const last = newest(curves.named("step_s"));
  return last !== null && chartCard("curve-split", "Time of a step on rank 0", { value: span(last), label: `Parts of a step on rank 0, by step; the newest step took ${span(last)}` });
}

export function splitChart(curves) {
  const steps = known(curves.named("step_s"));
  const parts = PARTS.map((part) => new Map(known(curves.named(part.field)).map((point) => [point[1], point[4]])));
  const rest = steps.map((point) => [...point.slice(0, 4), Math.max(0, point[4] - parts.reduce((sum, one) => sum + (one.get(point[1]) ?? 0), 0)), 0]);
  const line = ({ name, tint }, points) => ({ name, tint, curves, points, factor: MS });
  return {
    name: "split", unit: " ms", from_zero: true, is_stacked: true,
    lines: [...PARTS.map((part) => line(part, known(curves.named(part.field)))), line(OTHER, rest)],
  };
}
