// Where the memory of each worker goes: what was measured in a step, and what the strategy predicts.

import { h } from "../dom.js";
import { table } from "../parts.js";
import { bytes } from "../words.js";

const PARTS = [
  ["parameters", "series-1"],
  ["gradients", "series-7"],
  ["optimizer", "series-5"],
  ["activations", "series-2"],
  ["buckets", "series-8"],
  ["snapshots", "series-3"],
];
const NAMES = PARTS.map(([name]) => name);

const of = (worker, name, kind) => worker.memory[name]?.[`${kind}_bytes`] ?? null;
const sum = (worker, kind) => NAMES.reduce((all, name) => all + (of(worker, name, kind) ?? 0), 0);
const words = (worker, kind) => NAMES.filter((name) => of(worker, name, kind) !== null).map((name) => `${name} ${bytes(of(worker, name, kind))}`).join(", ");

export function memoryCard(workers) {
  const known = [...workers ?? []].filter((one) => one.memory && sum(one, "measured") > 0).sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
  if (!known.length) return null;
  const most = Math.max(...known.flatMap((one) => [sum(one, "measured"), sum(one, "predicted")]));
  const bar = (one, kind) => h("span", { class: `parts ${kind}`, title: `${kind}: ${words(one, kind)}`, css: { width: `${(100 * sum(one, kind)) / most}%` } },
    PARTS.map(([name, tint]) => h("i", { css: { "--tint": `var(--${tint})`, width: `${(100 * (of(one, name, kind) ?? 0)) / (sum(one, kind) || 1)}%` } })));
  return h("section", { class: "card", "data-key": "memory", "aria-labelledby": "memory-title" },
    h("div", { class: "card-head" }, h("h2", { id: "memory-title" }, "Memory of the training by worker"), h("span", { class: "note" }, "wide: measured in a step, narrow: predicted by the strategy")),
    h("div", { class: "legend", "aria-hidden": "true" }, PARTS.map(([name, tint]) => h("span", { css: { "--tint": `var(--${tint})` } }, name))),
    h("ul", { class: "split bars long", tabindex: "0", "aria-label": "Memory by worker" }, known.map((one) => h("li", { "data-key": `memory-${one.name}` },
      h("span", {}, one.name, h("span", { class: "unseen" }, `, measured: ${words(one, "measured")}; predicted: ${words(one, "predicted") || "nothing"}`)),
      h("span", { class: "pair", "aria-hidden": "true" }, bar(one, "measured"), bar(one, "predicted")),
      h("span", { class: "num soft" }, bytes(sum(one, "measured")))))),
    h("details", { class: "more" }, h("summary", {}, "In figures"), figures(known)));
}

function figures(workers) {
  const headings = [{ name: "Worker" }, ...NAMES.map((name) => ({ name, num: true })), { name: "process at its peak", num: true }];
  return table("Memory in figures", headings, workers.map((one) => h("tr", { "data-key": one.name },
    h("th", { scope: "row" }, one.name),
    NAMES.map((name) => h("td", { class: "num" }, bytes(of(one, name, "measured")), of(one, name, "predicted") !== null && h("div", { class: "faint small" }, `${bytes(of(one, name, "predicted"))} predicted`))),
    h("td", { class: "num" }, bytes(of(one, "process", "measured"))))));
}
