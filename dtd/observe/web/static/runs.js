// All jobs; some of them can be chosen and compared.

import { get } from "./api.js";
import { h, render } from "./dom.js";
import { dash, failed, jobLink, state, table } from "./parts.js";
import { clock, counted, number, rate, span, trainers, whole } from "./words.js";

const EVERY_MS = 5000;
const MOST_COMPARED = 8;

export function openRuns({ main }) {
  const chosen = new Set();
  const closing = new AbortController();
  let [jobs, error, wanted] = [null, null, ""];
  const timer = setInterval(look, EVERY_MS);

  async function look() {
    if (document.hidden) return;
    try { jobs = (await get("jobs", {}, closing.signal)).jobs; error = null; } catch (found) {
      if (found.name === "AbortError") return;
      error = found;
    }
    show();
  }

  function choose(id, is) {
    if (is && chosen.size < MOST_COMPARED) chosen.add(id);
    else chosen.delete(id);
    show();
  }

  function show() {
    const listed = (jobs ?? []).filter((one) => `${one.id} ${one.task} ${one.state} ${(one.tags ?? []).join(" ")}`.toLowerCase().includes(wanted));
    render(main,
      h("div", { class: "head" }, h("h1", {}, "Runs"), jobs && h("span", { class: "soft" }, counted(jobs.length, "job")),
        h("button", { class: "primary push", type: "button", id: "compare", disabled: chosen.size < 2, onclick: () => { location.hash = `#/compare?jobs=${[...chosen].map(encodeURIComponent).join(",")}`; } },
          chosen.size < 2 ? "Choose two or more to compare" : `Compare ${chosen.size}`)),
      error && failed(error),
      h("section", { class: "card", "aria-label": "Jobs" },
        h("div", { class: "fields" }, h("div", { class: "field grow" }, h("label", { for: "wanted" }, "Filter by id, task or state"),
          h("input", { id: "wanted", type: "search", oninput: (event) => { wanted = event.target.value.toLowerCase(); show(); } }))),
        listed.length ? table("Jobs", [
          { name: "Compare", hidden: true }, { name: "Job" }, { name: "State" }, { name: "Steps", num: true }, { name: "Loss", num: true }, { name: "Accuracy", num: true },
          { name: "Throughput", num: true }, { name: "Workers", num: true }, { name: "Lost", num: true }, { name: "Took", num: true }, { name: "Submitted" }, { name: "Differs in" }],
        listed.map((one) => row(one, chosen, choose))) : h("p", { class: "empty" }, jobs ? "No such job." : "…")));
  }

  show();
  look();
  return { title: "Runs", hear() {}, close() { clearInterval(timer); closing.abort(); } };
}

function row(job, chosen, choose) {
  const result = job.result ?? {};
  const took = job.started_s ? (job.ended_s ?? Date.now() / 1000) - job.started_s : null;
  const differs = Object.entries(job.settings ?? {}).map(([name, value]) => `${name} = ${typeof value === "object" ? JSON.stringify(value) : value}`);
  return h("tr", { "data-key": job.id },
    h("td", {}, h("input", { type: "checkbox", "aria-label": `Compare ${job.id}`, checked: chosen.has(job.id), onchange: (event) => choose(job.id, event.target.checked) })),
    h("th", { scope: "row" }, jobLink(job.id), (job.tags ?? []).length ? h("div", { class: "faint small" }, job.tags.join(", ")) : ""),
    h("td", {}, state(job.state)),
    h("td", { class: "num" }, whole(result.steps ?? job.step)),
    h("td", { class: "num" }, number(result.train_loss ?? job.loss)),
    h("td", { class: "num" }, result.eval_accuracy === undefined || result.eval_accuracy === null ? "–" : `${(100 * result.eval_accuracy).toFixed(1)} %`),
    h("td", { class: "num" }, rate(result.samples_per_s ?? job.samples_per_s)),
    h("td", { class: "num" }, whole(trainers(result.world_size ?? job.world_size, result.servers ?? job.servers))),
    h("td", { class: "num" }, whole(result.steps_lost ?? job.steps_lost)),
    h("td", { class: "num" }, span(took)),
    h("td", { class: "num soft" }, clock(job.submitted_s)),
    h("td", { class: "soft small" }, dash(differs.slice(0, 4).join(", "))));
}
