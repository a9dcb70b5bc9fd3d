// The cluster as it is: the job, its curves, the ring, the workers, what happened last.

import { get } from "../api.js";
import { chartChoices, drawFigures, figureCards } from "../figures/chart.js";
import { Curves } from "../figures/curves.js";
import { announce, h, render } from "../dom.js";
import { alert, dash, empty, eventList, jobLink, noJobs, state, table, tile, tiles } from "../parts.js";
import { forget } from "../figures/plots.js";
import { events, readEvents } from "../incidents/eventlog.js";
import { faultStrip, faultsOf, incidentCard, incidentMarks } from "../incidents/incidents.js";
import { BreakShown } from "../incidents/breaks.js";
import { membersOf, ring } from "../figures/ring.js";
import { split } from "../figures/split.js";
import { ago, bytes, counted, number, rate, span, trainers, whole } from "../words.js";

const CURVES_EVERY_MS = 3000;
const LATEST = 10;
const CARDS = 3;
const NAMES = "loss,rows_per_s,eval/loss,epoch,unix_s";

const jobOf = (status) => status?.job ?? status?.last_job ?? null;

export function openOverview({ main, world, confirmed }) {
  const seen = { newest: -1, details: null, curves: null, marks: null, job: "" };
  const closing = new AbortController();
  const timer = setInterval(curves, CURVES_EVERY_MS);
  const breaks = new BreakShown(show);

  const runs = () => [{ id: seen.job, curves: seen.curves }];

  async function incidents() {
    if (world.newest === seen.newest) return;
    Object.assign(seen, { newest: world.newest, marks: null });
    try {
      await readEvents();
      breaks.look(faultsOf(jobOf(world.status)?.id));
      show();
    } catch (error) { if (error.name !== "AbortError") seen.newest = -1; }
  }

  // For the state of the replicas after a fault; an answer may be some seconds old, so it is asked for
  // until it is that of the end.
  function detailsOf(job) {
    const known = seen.details?.id === job ? seen.details : null;
    return !faultsOf(job).length || known?.ended_s ? known : get(`jobs/${encodeURIComponent(job)}`, {}, closing.signal);
  }

  async function curves() {
    const job = jobOf(world.status)?.id;
    if (!job || document.hidden) return;
    if (job !== seen.job) { // a curve and its zoom are one job's; a new one has no points yet
      forget(main);
      const ask = (since) => get(`jobs/${encodeURIComponent(job)}/metrics`, { names: NAMES, ...since }, closing.signal);
      Object.assign(seen, { job, curves: new Curves(ask), marks: null });
      show();
    }
    try {
      [seen.marks, seen.details] = await Promise.all([seen.marks ?? incidentMarks(job), detailsOf(job), seen.curves.look()]);
      if (job !== seen.job) return; // another one has begun meanwhile
    } catch (error) { if (error.name === "AbortError") return; }
    show();
    drawFigures(runs(), seen.marks);
  }

  function show() {
    const { status, figures } = world;
    if (!status) { render(main, h("p", { class: "empty" }, "Loading …")); return; }
    const job = status.job;
    if (job?.state === "running") breaks.note(membersOf(status));
    const faults = jobOf(status) ? faultsOf(jobOf(status).id) : [];
    announce(job ? `${job.id}: ${job.state}` : "No job running");
    render(main,
      h("h1", { class: "unseen" }, "Overview"),
      (job || status.queue.length > 0) && status.explain && alert(status.explain),
      status.troubles.map((one) => h("div", { "data-key": `trouble-${one.kind}-${one.where}` }, alert(one.message, one.remedy))),
      job ? jobCard(job, world, confirmed) : idleCard(status),
      jobOf(status) && faultStrip(jobOf(status)),
      faults.slice(-CARDS).reverse().map((one) => incidentCard(one, seen.details?.id === one.job ? { ...seen.details, step: jobOf(status).step } : null)),
      h("div", { class: "grid" },
        h("section", { class: "card", "data-key": "ring", "aria-labelledby": "ring-title" }, h("h2", { id: "ring-title" }, "Ring"), ring(status, figures, breaks.shown())),
        h("section", { class: "card", "data-key": "split", "aria-labelledby": "split-title" }, h("h2", { id: "split-title" }, "Time of a step"), split(job ? figures : null))),
      seen.curves?.series.length ? [chartChoices(), h("div", { class: "grid", "data-key": "charts" }, figureCards(runs()))] : null,
      workersCard(status, world, confirmed),
      h("section", { class: "card", "data-key": "latest", "aria-labelledby": "latest-title" },
        h("div", { class: "card-head" }, h("h2", { id: "latest-title" }, "Latest events"), h("span", { class: "value small" }, h("a", { href: "#/events" }, "All events"))),
        eventList(events().slice(-LATEST).reverse())));
  }

  show();
  curves();
  incidents();
  return {
    title: "Overview",
    hear(topic) {
      if (topic === "incidents") incidents();
      else show();
      if (topic === "status" && (jobOf(world.status)?.id ?? "") !== seen.job) curves();
    },
    close() { clearInterval(timer); breaks.close(); closing.abort(); },
  };
}

export function jobCard(job, world, confirmed) {
  const share = job.total_steps ? Math.min(1, job.step / job.total_steps) : null;
  const batch_s = Math.max(0, ...(world.status?.workers ?? []).map((one) => one.step_s));
  const left = job.state === "running" && job.total_steps && batch_s ? (job.total_steps - job.step) * batch_s : null;
  return h("section", { class: "card", "data-key": "job", "aria-label": "The job" },
    h("div", { class: "head" },
      h("strong", {}, jobLink(job.id)), state(job.state), h("span", { class: "faint small mono" }, job.task),
      world.me.may_act && h("span", { class: "push" }, h("button", { class: "danger", type: "button", id: "cancel", onclick: () => confirmed(
        `Cancel ${job.id}?`, "It stops after its current step and keeps a checkpoint from which it can be resumed.", "Cancel the job", { what: "cancel", job: job.id }) }, "Cancel"))),
    job.reason && h("p", { class: "soft" }, job.reason),
    h("div", { class: "bar", css: { margin: "14px 0" }, role: "progressbar", "aria-label": "Steps", "aria-valuemin": "0", "aria-valuemax": job.total_steps ?? null, "aria-valuenow": job.step, "aria-valuetext": `step ${job.step}${job.total_steps ? ` of ${job.total_steps}` : ""}` },
      h("span", { css: { width: `${100 * (share ?? 0)}%` } })),
    tiles(
      tile("Step", job.total_steps ? `${whole(job.step)} / ${whole(job.total_steps)}` : job.step ? whole(job.step) : "–"),
      tile("Loss", number(job.loss)),
      tile("Throughput", rate(job.samples_per_s)),
      tile("Workers", whole(trainers(job.world_size, job.servers))),
      tile("Generation", whole(job.generation)),
      tile("Time left", left === null ? "–" : span(left)),
      tile("Steps lost", whole(job.steps_lost)),
      ...Object.entries(job.eval ?? {}).slice(0, 2).map(([name, value]) => tile(`Evaluation: ${name}`, number(value)))),
    job.straggler && h("p", { class: "soft small", css: { "margin-top": "12px" } }, stragglerWords(job.straggler)));
}

function stragglerWords(found) {
  return `Straggler: ${found.name}, which adds ${span(found.cost_s)} to each step.`;
}

function idleCard(status) {
  const last = status.last_job;
  return h("section", { class: "card", "data-key": "job", "aria-label": "The job" },
    h("div", { class: "head" }, h("strong", {}, "No job running"), h("span", { class: "soft" }, status.queue.length ? counted(status.queue.length, "job") + " queued" : "The queue is empty.")),
    !last && !status.queue.length && noJobs(),
    last && h("p", { class: "soft", css: { "margin-top": "8px" } }, "Last: ", jobLink(last.id), " ", state(last.state), ` ${ago(last.ended_s)}, ${whole(last.step)} steps. ${last.reason ?? ""}`));
}

function workersCard(status, world, confirmed) {
  const headings = [{ name: "Worker" }, { name: "State" }, { name: "Rank", num: true }, { name: "Step", num: true }, { name: "Rows", num: true }, { name: "Rate", num: true }, { name: "Step time", num: true }, { name: "Memory", num: true }, { name: "Last seen", num: true }, { name: "Host" }, { name: "Note" }];
  if (world.me.may_act) headings.push({ name: "Actions", hidden: true });
  const rows = status.workers.map((one) => h("tr", { "data-key": `worker-${one.name}` },
    h("th", { scope: "row" }, one.name),
    h("td", {}, state(one.state)),
    h("td", { class: "num" }, dash(one.rank)),
    h("td", { class: "num" }, one.rank === null ? "–" : whole(one.step)),
    h("td", { class: "num" }, one.rows > 0 ? whole(one.rows) : "–"),
    h("td", { class: "num" }, rate(one.samples_per_s)),
    h("td", { class: "num" }, one.step_s > 0 ? span(one.step_s) : "–"),
    h("td", { class: "num" }, one.memory_bytes > 0 ? bytes(one.memory_bytes) : "–"),
    h("td", { class: "num" }, one.last_heartbeat_s === null ? "–" : `${span(Math.round(one.last_heartbeat_s * 10) / 10 || 0.1)} ago`),
    h("td", { class: "faint" }, `${one.host} ${one.device}`),
    h("td", { class: "soft small text" }, dash(one.reason)),
    world.me.may_act && h("td", {}, h("div", { class: "row-actions" },
      h("button", { type: "button", "aria-label": `Drain ${one.name}`, onclick: () => confirmed(`Drain ${one.name}?`, "It leaves after the current step; nothing is lost.", "Drain the worker", { what: "drain", worker: one.name }) }, "Drain"),
      h("button", { class: "danger", type: "button", "aria-label": `Kill ${one.name}`, onclick: () => confirmed(`Kill ${one.name}?`, "Its process receives SIGKILL, to test recovery. The other workers continue without it.", "Kill the worker", { what: "kill", worker: one.name }) }, "Kill")))));
  // On a phone a worker is a block, and each figure names itself.
  for (const row of rows) [...row.children].forEach((cell, at) => { if (at > 1 && !headings[at].hidden) cell.dataset.name = headings[at].name; });
  return h("section", { class: "card workers", "data-key": "workers", "aria-labelledby": "workers-title" },
    h("div", { class: "card-head" }, h("h2", { id: "workers-title" }, "Workers"), h("span", { class: "note" }, counted(status.workers.length, "worker"))),
    status.workers.length ? table("Workers", headings, rows) : empty("No workers yet", "Each host that trains runs one; it appears here when it has registered.", "systemctl enable --now dtd-worker"));
}
