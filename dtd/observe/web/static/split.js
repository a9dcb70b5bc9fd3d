// Where the time of a step goes, worker by worker.

import { h } from "./dom.js";
import { span } from "./words.js";

export const PARTS = [
  ["data_s", "data", "series-7"],
  ["compute_s", "compute", "series-1"],
  ["exposed_s", "communication not hidden", "series-2"],
  ["optimizer_s", "optimizer", "series-5"],
];
const REST = ["rest", "other", "grid"];

export const legend = () => h("div", { class: "legend", "aria-hidden": "true" },
  [...PARTS, REST].map(([, name, tint]) => h("span", { css: { "--tint": `var(--${tint})` } }, name)));

export function split(figures) {
  const workers = [...figures?.workers ?? []].sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
  if (!workers.length) return h("p", { class: "empty" }, "No step was measured yet.");
  const slowest = Math.max(...workers.map((one) => one.step_s));
  return [legend(), h("div", { class: "split", role: "list", "aria-label": "Time of a step, by worker" }, workers.map((one) => {
    const known = PARTS.map(([field, name, tint]) => [Math.max(0, one[field] ?? 0), name, tint]);
    const told = known.map(([value, name]) => `${name} ${span(value)}`).join(", ");
    return [
      h("span", { role: "listitem", "data-key": `split-${one.name}` }, one.name, h("span", { class: "unseen" }, `: ${told}`)),
      h("span", { class: "parts", title: told, css: { width: `${(100 * one.step_s) / slowest}%` } },
        known.map(([value, , tint]) => h("i", { css: { "--tint": `var(--${tint})`, width: `${(100 * value) / one.step_s}%` } }))),
      h("span", { class: "num soft" }, span(one.step_s)),
    ];
  }))];
}
