// All jobs in one table: the columns, the order and the filter are chosen; some are compared.

import { get } from "../api.js";
import { MOST_COMPARED } from "./compare.js";
import { h, render } from "../dom.js";
import { dash, failed, jobLink, noJobs, state } from "../parts.js";
import { clock, counted, number, rate, shown, span, trainers, whole } from "../words.js";

const KEY = "dtd-runs";
const EVERY_MS = 5000;
const MOST_ROWS = 100;
const MOST_SETTINGS = 4;
const FIRST = ["state", "took", "step", "rate", "workers", "last training loss", "best eval/loss", "best eval/accuracy", "submitted", "tags", "note"];

// A column is { name, title, value, words }: what it sorts by, and how that is shown.
const plain = (name, title, value, words) => ({ name, title, value, words, is_number: true });
const text = (name, title, value, words = dash) => ({ name, title, value, words, is_number: false });
const OF_JOB = [
  text("state", "State", (job) => job.state, state),
  plain("took", "Duration", (job) => (job.started_s ? (job.ended_s ?? Date.now() / 1000) - job.started_s : null), span),
  plain("step", "Steps", (job) => job.result.steps ?? job.step, whole),
  plain("rate", "Rate", (job) => job.result.samples_per_s ?? job.samples_per_s, rate),
  plain("workers", "Workers", (job) => trainers(job.result.world_size ?? job.world_size, job.result.servers ?? job.servers), whole),
  plain("lost", "Steps lost", (job) => job.result.steps_lost ?? job.steps_lost, whole),
];
const OF_PEOPLE = [
  plain("submitted", "Submitted", (job) => job.submitted_s, clock),
  text("task", "Task", (job) => job.task),
  text("tags", "Tags", (job) => (job.tags ?? []).join(", ")),
  text("note", "Note", (job) => job.note),
  text("settings", "Settings that differ", (job) => Object.entries(job.settings ?? {}).slice(0, MOST_SETTINGS).map(([name, value]) => `${name} = ${shown(value)}`).join(", ")),
];

// Metrics are named "training loss" and "eval/NAME".
const TRAINING = "training loss";
const EVALUATION = "eval/";
const lowIsBetter = (name) => name.includes("loss");
const ofMetric = (name) => [["last", "Last"], ["best", "Best"]].map(([which, title]) => plain(`${which} ${name}`, `${title} ${name.replace("/", " ")}`, (job) => job[which]?.[name] ?? null, number));

const lastOf = (evaluated, loss) => ({ [TRAINING]: loss, ...Object.fromEntries(Object.entries(evaluated ?? {}).map(([name, value]) => [EVALUATION + name, value])) });

function remembered() {
  try { return JSON.parse(localStorage.getItem(KEY)); } catch { return null; }
}

export function openRuns({ main, world }) {
  const closing = new AbortController();
  const selected = new Set();
  const wanted = { columns: FIRST, sort: "submitted", is_rising: false, ...remembered(), text: "", tag: "" };
  const bests = new Map(); // of each job by id: { metric: value }
  let [jobs, error, rows] = [null, null, MOST_ROWS];
  const timer = setInterval(look, EVERY_MS);

  async function look() {
    if (document.hidden) return;
    try {
      jobs = (await get("jobs", {}, closing.signal)).jobs.map(completed);
      error = null;
    } catch (found) {
      if (found.name === "AbortError") return;
      error = found;
    }
    show();
    if (jobs) lookForBest();
  }

  // A job of the list, with what only the live status has of one that trains.
  function completed(job) {
    const live = [world.status?.job, ...world.status?.other_jobs ?? []].find((one) => one?.id === job.id);
    const result = job.result ?? {};
    return { ...live, ...job, step: live?.step ?? job.step, result, last: lastOf(live?.eval ?? result.metrics, result.train_loss ?? live?.loss), best: bests.get(job.id) };
  }

  // The best value of each figure is the least or the greatest of its curve as a single point.
  async function lookForBest() {
    if (!wanted.columns.some((name) => name.startsWith("best "))) return;
    for (const job of sorted().slice(0, rows)) {
      if (bests.has(job.id) && job.ended_s) continue;
      try {
        const { series } = await get(`jobs/${encodeURIComponent(job.id)}/metrics`, { points: 1 }, closing.signal);
        bests.set(job.id, Object.fromEntries(series.filter((one) => one.points[0]?.[2]).map((one) => {
          const name = one.name === "loss" ? TRAINING : one.name;
          return [name, one.points[0][lowIsBetter(name) ? 3 : 5]];
        })));
      } catch (found) { if (found.name === "AbortError") return; }
    }
    jobs = jobs.map((job) => ({ ...job, best: bests.get(job.id) }));
    show();
  }

  const columns = () => {
    const metrics = [...new Set((jobs ?? []).flatMap((job) => Object.keys(job.last)))].sort();
    return [...OF_JOB, ...[...new Set([TRAINING, ...metrics])].flatMap(ofMetric), ...OF_PEOPLE];
  };

  function choose(change) {
    Object.assign(wanted, change);
    const { columns: names, sort, is_rising } = wanted;
    localStorage.setItem(KEY, JSON.stringify({ columns: names, sort, is_rising }));
    show();
    if (jobs) lookForBest();
  }

  function select(id, is) {
    if (is && selected.size < MOST_COMPARED) selected.add(id);
    else selected.delete(id);
    show();
  }

  function sorted() {
    const has = (job) => `${job.id} ${job.task} ${job.state} ${(job.tags ?? []).join(" ")} ${job.note ?? ""}`.toLowerCase().includes(wanted.text)
      && (!wanted.tag || job.tags?.includes(wanted.tag));
    const { value } = columns().find((one) => one.name === wanted.sort) ?? { value: (job) => job.id };
    const sign = wanted.is_rising ? 1 : -1;
    const nothing = (one) => one === null || one === undefined || one === "";
    const compare = ([a], [b]) => nothing(a) - nothing(b) || sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
    return (jobs ?? []).filter(has).map((job) => [value(job), job]).sort(compare).map(([, job]) => job);
  }

  function heading(column) {
    const is_sorted = wanted.sort === column.name;
    return h("th", { scope: "col", class: column.is_number ? "num" : null, "aria-sort": is_sorted ? (wanted.is_rising ? "ascending" : "descending") : null },
      h("button", { type: "button", class: "plain sort", onclick: () => choose({ sort: column.name, is_rising: is_sorted && !wanted.is_rising }) }, column.title, is_sorted && (wanted.is_rising ? " ↑" : " ↓")));
  }

  function row(job, listed) {
    return h("tr", { "data-key": job.id },
      h("td", {}, h("input", { type: "checkbox", "aria-label": `Compare ${job.id}`, checked: selected.has(job.id), onchange: (event) => select(job.id, event.target.checked) })),
      h("th", { scope: "row" }, jobLink(job.id)),
      listed.map((column) => {
        const value = column.value(job);
        return h("td", { class: column.is_number ? "num" : "short", title: column.is_number ? null : value }, column.words(value));
      }));
  }

  function filters() {
    const tags = [...new Set((jobs ?? []).flatMap((job) => job.tags ?? []))].sort();
    const names = wanted.columns;
    return h("div", { class: "fields" },
      h("div", { class: "field grow" }, h("label", { for: "wanted" }, "Filter by id, task, state, tag or note"),
        h("input", { id: "wanted", type: "search", oninput: (event) => { wanted.text = event.target.value.toLowerCase(); show(); } })),
      tags.length > 0 && h("div", { class: "field" }, h("label", { for: "tag" }, "Tag"), h("select", { id: "tag", onchange: (event) => { wanted.tag = event.target.value; show(); } },
        h("option", { value: "" }, "all"), tags.map((one) => h("option", { value: one, selected: one === wanted.tag }, one)))),
      h("details", { class: "columns" }, h("summary", { class: "button" }, "Columns"), h("div", { class: "choices-of" }, columns().map((one) =>
        h("label", { "data-key": one.name }, h("input", { type: "checkbox", checked: names.includes(one.name), onchange: (event) => choose({ columns: event.target.checked ? [...names, one.name] : names.filter((name) => name !== one.name) }) }), one.title)))));
  }

  function show() {
    const found = sorted();
    const listed = columns().filter((one) => wanted.columns.includes(one.name));
    const head = { name: "", title: "Job", is_number: false };
    render(main,
      h("div", { class: "head" }, h("h1", {}, "Runs"), jobs && h("span", { class: "soft" }, counted(jobs.length, "job")),
        h("button", { class: "primary push", type: "button", id: "compare", disabled: selected.size < 2, onclick: () => { location.hash = `#/compare?jobs=${[...selected].map(encodeURIComponent).join(",")}`; } },
          selected.size < 2 ? "Select two or more to compare" : `Compare ${selected.size}`)),
      error && failed(error),
      h("section", { class: "card", "aria-label": "Jobs" }, filters(),
        found.length ? h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Jobs" }, h("table", { class: "runs" },
          h("thead", {}, h("tr", {}, h("th", { scope: "col" }, h("span", { class: "unseen" }, "Compare")), heading(head), listed.map(heading))),
          h("tbody", {}, found.slice(0, rows).map((job) => row(job, listed))))) : jobs && !jobs.length ? noJobs() : h("p", { class: "empty" }, jobs ? "No job matches." : "…"),
        found.length > rows && h("button", { type: "button", onclick: () => { rows = Infinity; show(); lookForBest(); } }, `Show all ${found.length}`)));
  }

  show();
  look();
  return { title: "Runs", hear() {}, close() { clearInterval(timer); closing.abort(); } };
}
