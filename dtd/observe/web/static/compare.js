// Several jobs side by side: results, and curves on top of each other.

import { get } from "./api.js";
import { h, render } from "./dom.js";
import { chartCard, failed, jobLink, state, table } from "./parts.js";
import { curve, draw, palette } from "./plots.js";
import { number, rate, shown, span, trainers, whole } from "./words.js";

const MOST = 8;
const CURVES = [["loss", "Loss"], ["rows_per_s", "Throughput"], ["learning_rate", "Learning rate"], ["gradient_norm", "Gradient norm"]];

export function openCompare({ main, query }) {
  const ids = (query.get("jobs") ?? "").split(",").filter(Boolean).slice(0, MOST);
  const closing = new AbortController();
  let [jobs, curves, compared, error] = [null, new Map(), null, null];

  async function look() {
    try {
      compared = await get("compare", { jobs: ids.join(",") }, closing.signal);
      const found = await Promise.all(ids.map((id) => Promise.all([
        get(`jobs/${encodeURIComponent(id)}`, {}, closing.signal), get(`jobs/${encodeURIComponent(id)}/metrics`, { points: 300 }, closing.signal)])));
      jobs = found.map(([job]) => job);
      curves = new Map(found.map(([job, metrics]) => [job.id, metrics.series]));
    } catch (found) {
      if (found.name === "AbortError") return;
      error = found;
    }
    show();
    for (const name of names()) {
      const place = document.getElementById(`curve-${name}`);
      if (place) draw(place, () => ids.flatMap((id, at) => {
        const series = curves.get(id)?.find((one) => one.name === name);
        return series ? curve(series, id, palette()[at]).filter((trace) => trace.hoverinfo !== "skip") : [];
      }), { showlegend: true, xaxis: { title: { text: "step" } } });
    }
  }

  const known = (name) => [...curves.values()].some((all) => all.some((one) => one.name === name && one.points.some((point) => point[4] !== null)));
  const names = () => [...CURVES.map(([name]) => name).filter(known), ...new Set([...curves.values()].flat().map((one) => one.name).filter((name) => name.startsWith("eval/") && known(name)))];

  function show() {
    if (ids.length < 2) { render(main, h("h1", {}, "Compare"), h("p", { class: "empty" }, "Choose two or more jobs in ", h("a", { href: "#/runs" }, "Runs"), ".")); return; }
    render(main, h("div", { class: "head" }, h("h1", {}, "Compare"), h("span", { class: "soft" }, ids.join(", "))),
      error && failed(error),
      jobs && h("div", { class: "grid" }, names().map((name) => chartCard(`curve-${name}`, CURVES.find(([one]) => one === name)?.[1] ?? name.replace("eval/", "Evaluation: "), { label: `${name} of ${ids.join(", ")}` }))),
      jobs && h("section", { class: "card", "aria-label": "Results" }, h("h2", {}, "Results"), table("Results", [{ name: "Figure" }, ...jobs.map((one) => ({ name: one.id, num: true }))], [...resultRows(jobs), ...bestRows(compared)])),
      jobs && h("section", { class: "card", "aria-label": "Differences" }, h("h2", {}, "Differences"), differing(compared)));
  }

  show();
  if (ids.length >= 2) look();
  return { title: "Compare", hear() {}, close() { closing.abort(); } };
}

function resultRows(jobs) {
  const of = (job, name) => job.result?.[name] ?? job[name];
  const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(2)} %`);
  const rows = [
    ["Job", (one) => jobLink(one.id)], ["State", (one) => state(one.state)], ["Steps", (one) => whole(one.result?.steps ?? one.step)],
    ["Train loss", (one) => number(one.result?.train_loss ?? one.loss)], ["Eval loss", (one) => number(of(one, "eval_loss"))], ["Accuracy", (one) => percent(of(one, "eval_accuracy"))],
    ["Throughput", (one) => rate(of(one, "samples_per_s"))], ["Workers", (one) => whole(trainers(of(one, "world_size"), of(one, "servers")))],
    ["Took", (one) => span(one.started_s && one.ended_s ? one.ended_s - one.started_s : null)], ["Steps lost", (one) => whole(of(one, "steps_lost"))]];
  return rows.map(([name, words]) => h("tr", {}, h("th", { scope: "row" }, name), jobs.map((one) => h("td", { class: "num" }, words(one)))));
}

// The best value of each figure, as the coordinator remembers it.
function bestRows(compared) {
  return compared.figures.filter((one) => one.of.some((value) => value?.best !== null && value?.best !== undefined)).map((one) =>
    h("tr", {}, h("th", { scope: "row" }, `Best ${one.name}`), one.of.map((value) => h("td", { class: "num" }, value ? `${number(value.best)} at step ${whole(value.end)}` : "–"))));
}

function differing(compared) {
  if (!compared.differences.length) return h("p", { class: "empty" }, "They are the same.");
  return table("Differences", [{ name: "Of" }, { name: "Key" }, ...compared.jobs.map((one) => ({ name: one.id ?? one }))],
    compared.differences.map((one) => h("tr", {}, h("td", { class: "faint" }, one.of), h("th", { scope: "row", class: "mono" }, one.key), one.values.map((value) => h("td", { class: "mono" }, shown(value))))));
}
