// Several jobs side by side: curves on top of each other, results, differences.

import { get } from "../api.js";
import { chartChoices, drawFigures, figureCards } from "../figures/chart.js";
import { Curves } from "../figures/curves.js";
import { h, render } from "../dom.js";
import { incidentMarks } from "../incidents/incidents.js";
import { failed, jobLink, state, table } from "../parts.js";
import { number, rate, shown, span, trainers, whole } from "../words.js";

export const MOST_COMPARED = 8;
const EVERY_MS = 5000;

export function openCompare({ main, query }) {
  const ids = (query.get("jobs") ?? "").split(",").filter(Boolean).slice(0, MOST_COMPARED);
  const closing = new AbortController();
  const path = (id) => `jobs/${encodeURIComponent(id)}`;
  const runs = ids.map((id) => ({ id, curves: new Curves((query) => get(`${path(id)}/metrics`, query, closing.signal)), details: null, spec: null, marks: [] }));
  const timer = setInterval(look, EVERY_MS);
  let [compared, error] = [null, null];

  async function lookAt(run) {
    if (run.details?.ended_s) return;
    const [details, marks] = await Promise.all([get(path(run.id), {}, closing.signal), incidentMarks(run.id), run.curves.look()]);
    Object.assign(run, { details, spec: details.spec, marks: marks.map((one) => ({ ...one, label: `${run.id}: ${one.label}`, curves: run.curves })) });
  }

  async function look(first = false) {
    if (ids.length < 2 || (!first && (document.hidden || runs.every((run) => run.details?.ended_s)))) return;
    try {
      [compared] = await Promise.all([get("compare", { jobs: ids.join(",") }, closing.signal), ...runs.map(lookAt)]);
      error = null;
    } catch (found) {
      if (found.name === "AbortError") return;
      error = found;
    }
    show();
    if (compared) drawFigures(runs, runs.flatMap((run) => run.marks));
  }

  function show() {
    if (ids.length < 2) { render(main, h("h1", {}, "Compare"), h("p", { class: "empty" }, "Choose two or more jobs in ", h("a", { href: "#/runs" }, "Runs"), ".")); return; }
    const jobs = runs.map((run) => run.details);
    render(main, h("div", { class: "head" }, h("h1", {}, "Compare"), h("span", { class: "soft" }, ids.join(", "))),
      error && failed(error),
      compared && [chartChoices(), h("div", { class: "grid", "data-key": "charts" }, figureCards(runs))],
      compared && h("section", { class: "card", "aria-label": "Results" }, h("h2", {}, "Results"), table("Results", [{ name: "Figure" }, ...jobs.map((one) => ({ name: one.id, num: true }))], [...resultRows(jobs), ...bestRows(compared)])),
      compared && h("section", { class: "card", "aria-label": "Differences" }, h("h2", {}, "Differences"), differing(compared)));
  }

  show();
  look(true);
  return { title: "Compare", hear() {}, close() { clearInterval(timer); closing.abort(); } };
}

function resultRows(jobs) {
  const of = (job, name) => job.result?.[name] ?? job[name];
  const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(2)} %`);
  const rows = [
    ["Job", (one) => jobLink(one.id)], ["State", (one) => state(one.state)], ["Steps", (one) => whole(one.result?.steps ?? one.step)],
    ["Train loss", (one) => number(one.result?.train_loss ?? one.loss)], ["Eval loss", (one) => number(of(one, "eval_loss"))], ["Accuracy", (one) => percent(of(one, "eval_accuracy"))],
    ["Throughput", (one) => rate(of(one, "samples_per_s"))], ["Workers", (one) => whole(trainers(of(one, "world_size"), of(one, "servers")))],
    ["Duration", (one) => span(one.started_s && one.ended_s ? one.ended_s - one.started_s : null)], ["Steps lost", (one) => whole(of(one, "steps_lost"))]];
  return rows.map(([name, words]) => h("tr", {}, h("th", { scope: "row" }, name), jobs.map((one) => h("td", { class: "num" }, words(one)))));
}

// The best value of each figure, as the coordinator remembers it.
function bestRows(compared) {
  return compared.figures.filter((one) => one.of.some((value) => value?.best !== null && value?.best !== undefined)).map((one) =>
    h("tr", {}, h("th", { scope: "row" }, `Best ${one.name}`), one.of.map((value) => h("td", { class: "num" }, value ? `${number(value.best)} at step ${whole(value.end)}` : "–"))));
}

function differing(compared) {
  if (!compared.differences.length) return h("p", { class: "empty" }, "They are the same.");
  return table("Differences", [{ name: "Kind" }, { name: "Key" }, ...compared.jobs.map((one) => ({ name: one.id ?? one }))],
    compared.differences.map((one) => h("tr", {}, h("td", { class: "faint" }, one.of), h("th", { scope: "row", class: "mono" }, one.key), one.values.map((value) => h("td", { class: "mono" }, shown(value))))));
}
