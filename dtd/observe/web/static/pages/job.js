// One job: its curves, where its time went, its workers and links, what happened, what it left.

import { get, save } from "../api.js";
import { announce, h, render } from "../dom.js";
import { chartChoices, drawCurves, drawFigures, figureCards } from "../figures/chart.js";
import { Curves } from "../figures/curves.js";
import { events, newestEvent, readEvents } from "../incidents/eventlog.js";
import { faultStrip, faultsOf, incidentCard, incidentMarks } from "../incidents/incidents.js";
import { chartCard, command, empty, eventList, failed, state, table, tile, tiles } from "../parts.js";
import { known, newest } from "../figures/points.js";
import { memoryCard } from "../figures/memory.js";
import { splitCard, splitChart } from "../figures/split.js";
import { jobCard } from "./overview.js";
import { ownFirst } from "../incidents/traceback.js";
import { bandwidth, bytes, clock, counted, kind, number, rate, shown, span, trainers, whole } from "../words.js";

const EVERY_MS = 4000;
const WORKERS_EVERY = 3; // looks
const DETAILS_EVERY = 5; // looks; what changes sooner is in the status, or follows an event
const LATEST = 12;
const OF_WORKERS = [
  ["memory_bytes", "Memory", bytes, 1 / 2 ** 20, " MiB"],
  ["processor_cores", "Processor cores", (value) => number(value, 2), 1, ""],
  ["gpu_use", "GPU use", (value) => `${Math.round(100 * value)} %`, 100, " %"],
  ["sent_bytes_per_s", "Sent", bandwidth, 1, "B/s"],
  ["round_trip_s", "Round trip of links", span, 1000, " ms"],
  ["link_bytes_per_s", "Rate of links", bandwidth, 1, "B/s"],
];

export function openJob({ main, world, parts, confirmed }) {
  const id = parts[0] ?? "";
  const path = `jobs/${encodeURIComponent(id)}`;
  const closing = new AbortController();
  const seen = { details: null, error: null, marks: [] };
  const ask = (query) => get(`${path}/metrics`, query, closing.signal);
  const of_job = new Curves(ask);
  const of_workers = new Curves((since) => ask({ workers: 1, names: OF_WORKERS.map(([name]) => name).join(","), ...since }));
  const timer = setInterval(look, EVERY_MS);
  let [ended, news, rounds, active] = [false, false, 0, null];

  async function look(first = false) {
    if ((document.hidden || ended) && !first) return;
    rounds += 1;
    try {
      const [details, figures, , marks] = await Promise.all([
        first || news || rounds % DETAILS_EVERY === 0 ? get(path, {}, closing.signal) : seen.details, of_job.look(),
        rounds % WORKERS_EVERY === 1 && of_workers.look(), first || news ? incidentMarks(id) : seen.marks]);
      news = false;
      if (seen.details && details.steps_lost !== seen.details.steps_lost) [of_job, of_workers].forEach((one) => one.restart());
      ended = Boolean(details.ended_s);
      Object.assign(seen, { details, marks, stopped: figures.stopped, error: null });
    } catch (error) {
      if (error.name === "AbortError") return;
      seen.error = error;
    }
    show();
    plot();
  }

  const saving = { busy: false, error: null, run: async () => {
    Object.assign(saving, { busy: true, error: null });
    show();
    try { await save(`${path}/report`, `${id}.html`); announce("Report saved."); } catch (error) { saving.error = error; }
    saving.busy = false;
    show();
  } };

  const runs = () => [{ id, curves: of_job, spec: seen.details?.spec }];
  const shownWorkers = () => OF_WORKERS.map((one) => [...one, of_workers.all(one[0])]).filter((one) => one.at(-1).length);

  function plot() {
    drawFigures(runs(), seen.marks);
    drawCurves(document.getElementById("curve-split"), { ...splitChart(of_job), marks: seen.marks });
    for (const [name, , , factor, unit, all] of shownWorkers()) {
      drawCurves(document.getElementById(`many-${name}`), { name, unit, from_zero: true, marks: seen.marks, lines: all.map((one, at) => (
        { name: one.to ? `${one.source} → ${one.to}` : one.source, points: known(one), tint: `series-${1 + (at % 8)}`, factor })) });
    }
  }

  function show() {
    if (seen.error) { render(main, h("h1", {}, id), failed(seen.error)); return; }
    if (!seen.details) { render(main, h("h1", {}, id), h("p", { class: "empty" }, "…")); return; }
    if (ended) active = null;
    else if (world.status?.job?.id === id) active = world.status.job; // kept until the job's result is here
    const charts = figureCards(runs());
    render(main,
      h("div", { class: "head" }, h("h1", {}, id), state(active?.state ?? seen.details.state),
        h("span", { class: "push" }, h("a", { class: "button", href: `#/logs/${encodeURIComponent(id)}` }, `Output (${whole(seen.details.lines)})`))),
      seen.details.state === "failed" && failureCard(seen.details, seen.details.result ?? {}),
      active ? jobCard(active, world, confirmed) : factsCard(seen.details),
      faultStrip({ ...seen.details, steps_lost: active?.steps_lost ?? seen.details.steps_lost }),
      faultsOf(id).reverse().map((one) => incidentCard(one, { ...seen.details, step: active?.step ?? seen.details.step })),
      seen.stopped && h("div", { class: "alert" }, `Metrics are not being stored: ${seen.stopped}`),
      !charts.length && h("p", { class: "empty" }, "No metrics yet: the job has not trained a step."),
      charts.length > 0 && chartChoices(),
      h("div", { class: "grid", "data-key": "charts" }, charts, splitCard(of_job)),
      active && memoryCard(world.status.workers),
      shownWorkers().length ? h("h2", {}, "Workers and links over time") : null,
      h("div", { class: "grid wide", "data-key": "worker-charts" }, shownWorkers().map(([name, title, words, , , all]) =>
        chartCard(`many-${name}`, title, { value: words(Math.max(...all.map((one) => newest(one) ?? 0))), note: "largest now", label: `${title} over time, of ${all.length} workers or links` }))),
      checkpointsCard(seen.details.checkpoints),
      h("section", { class: "card", "aria-label": "Events" }, h("h2", {}, "Events"), countsOf(seen.details.incidents), eventList(events().filter((one) => one.job === id).slice(-LATEST).reverse())),
      takeAwayCard(id, path, active, saving),
      settingsCard(seen.details));
  }

  show();
  look(true);
  return { title: id, hear(topic) {
    if (topic === "incidents") news = true;
    if (topic === "incidents" && world.newest > newestEvent()) readEvents().then(show, () => {});
    if (topic === "status" && seen.details && !ended) show();
  }, close() { clearInterval(timer); closing.abort(); } };
}

function factsCard(job) {
  const result = job.result ?? {};
  const took = job.started_s && job.ended_s ? job.ended_s - job.started_s : null;
  return h("section", { class: "card", "aria-label": "Result" },
    job.reason && job.state !== "failed" && h("p", { class: "soft", css: { "margin-bottom": "12px" } }, job.reason),
    tiles(
      tile("Steps", whole(result.steps ?? job.step)), tile("Train loss", number(result.train_loss ?? job.loss)),
      result.eval_loss !== undefined && tile("Eval loss", number(result.eval_loss)),
      result.eval_accuracy !== undefined && result.eval_accuracy !== null && tile("Accuracy", `${(100 * result.eval_accuracy).toFixed(1)} %`),
      tile("Throughput", rate(result.samples_per_s)), tile("Workers", whole(trainers(result.world_size, result.servers))), tile("Duration", span(took)),
      tile("Steps lost", whole(result.steps_lost ?? job.steps_lost)), tile("Submitted", clock(job.submitted_s), true), tile("Ended", clock(job.ended_s), true)));
}

function failureCard(job, result) {
  const [error, own, all] = ownFirst(result.traceback ?? "");
  return h("section", { class: "card incident bad failure", "aria-label": "Failure" },
    h("p", { class: "headline" }, h("strong", {}, error || job.reason || "The job failed.")),
    error && job.reason && !job.reason.endsWith(error) && h("p", { class: "soft" }, job.reason),
    own && h("pre", { class: "traceback", tabindex: "0", "aria-label": "Your code" }, own),
    all && h("details", {}, h("summary", {}, "Full traceback"), h("pre", { class: "traceback", tabindex: "0", "aria-label": "Traceback" }, all)),
    h("p", { class: "soft" }, "See its ", h("a", { href: `#/logs/${encodeURIComponent(job.id)}` }, "output"), ". Once fixed, continue from its newest checkpoint:"),
    command(`dtdctl submit JOB.toml --resume-from ${job.id}`));
}

function takeAwayCard(id, path, active, saving) {
  return h("section", { class: "card", "data-key": "take-away", "aria-labelledby": "take-away-title" }, h("h2", { id: "take-away-title" }, active ? "Report and profile" : "Report and rerun"),
    h("div", { class: "take-away" },
      h("p", { class: "soft" }, "One file to keep or share: curves, throughput, communication, incidents, and what limits the job."),
      h("button", { type: "button", id: "report", disabled: saving.busy, onclick: saving.run }, saving.busy ? "Creating the report …" : "Download the report"),
      saving.error && failed(saving.error),
      active ? [h("p", { class: "soft" }, "Record some steps of every worker as a trace for Perfetto:"), command(`dtdctl profile ${id}`)]
        : [h("p", { class: "soft" }, "Run it again; add --set to change settings:"), command(`dtdctl submit --like ${id}`)]));
}

function checkpointsCard(checkpoints) {
  return h("section", { class: "card", "aria-label": "Checkpoints" }, h("h2", {}, "Checkpoints"), checkpointTable(checkpoints, false));
}

export function checkpointTable(checkpoints, with_job) {
  if (!checkpoints?.length) return empty("No checkpoints yet", "A job writes one at its end, and every checkpoint.every_steps steps.");
  const groups = new Map();
  for (const one of checkpoints) {
    const key = `${one.job} ${one.generation} ${one.step}`;
    groups.set(key, [...(groups.get(key) ?? []), one]);
  }
  const headings = [...(with_job ? [{ name: "Job" }] : []), { name: "Step", num: true }, { name: "Generation", num: true }, { name: "Size", num: true }, { name: "Stored on" }, { name: "Digest" }, { name: "Metrics" }, { name: "Verified" }];
  return table("Checkpoints", headings, [...groups].map(([key, held]) => {
    const one = held[0];
    const alive = held.filter((copy) => copy.alive);
    return h("tr", { "data-key": key },
      with_job && h("th", { scope: "row" }, h("a", { href: `#/job/${encodeURIComponent(one.job)}` }, one.job)),
      h("td", { class: "num" }, whole(one.step)), h("td", { class: "num" }, whole(one.generation)), h("td", { class: "num" }, bytes(Math.max(...held.map((copy) => copy.size_bytes)))),
      h("td", {}, held.map((copy) => copy.worker).sort().join(", "), alive.length ? "" : h("span", { class: "faint" }, " (none connected)")),
      h("td", { class: "mono faint" }, String(one.digest ?? "").slice(0, 12)),
      h("td", { class: "small" }, Object.entries(one.metrics ?? {}).map(([name, value]) => `${name} ${number(value)}`).join(", ") || "–"),
      h("td", {}, held.some((copy) => copy.verified) ? h("span", { class: "state good" }, "verified") : h("span", { class: "state" }, one.left_behind ? "superseded" : one.confirmation || "not yet")));
  }));
}

function countsOf(counts) {
  const found = Object.entries(counts ?? {});
  return found.length ? h("p", { class: "soft small", css: { "margin-bottom": "8px" } }, found.map(([name, count]) => `${kind(name)} ${count}`).join(" · ")) : null;
}

function settingsCard(job) {
  const rows = Object.entries(job.spec ?? {}).flatMap(([name, values]) => Object.entries(values ?? {}).map(([key, value]) => [`${name}.${key}`, value]));
  return h("section", { class: "card", "aria-label": "Settings" },
    h("details", {}, h("summary", {}, h("strong", {}, "Settings"), h("span", { class: "faint" }, ` (${rows.length})`)),
      table("Settings", [{ name: "Setting" }, { name: "Value" }], rows.map(([name, value]) => h("tr", {}, h("td", { class: "mono" }, name), h("td", { class: "mono text" }, shown(value)))))));
}
