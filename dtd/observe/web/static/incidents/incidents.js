// Incidents: what befell a job, and how it recovered, from the coordinator's events.

import { h } from "../dom.js";
import { events, readEventsOf } from "./eventlog.js";
import { level } from "../parts.js";
import { clock, counted, kind, seconds } from "../words.js";

const BEGINS = ["worker_signalled", "ring_broken", "worker_lost", "replicas_diverged", "generation_ending"];
const ENDS = ["job_done", "job_failed", "job_cancelled"];
const MOST_PARTS = 40;

// Groups events by incident, oldest first; one without `recovered_s` is not over.
export function incidentsOf(all) {
  const found = [], open = new Map();
  for (const one of all) {
    if (!one.job) continue;
    if (ENDS.includes(one.kind)) { open.delete(one.job); continue; }
    if (!open.has(one.job) && !BEGINS.includes(one.kind)) continue;
    if (!open.has(one.job)) open.set(one.job, []);
    open.get(one.job).push(one);
    if (one.kind === "recovered") {
      found.push(summary(open.get(one.job), one));
      open.delete(one.job);
    }
  }
  // A signal alone, such as STOP, may have had no effect yet.
  const broken = [...open.values()].filter((parts) => parts.some((one) => one.kind !== "worker_signalled"));
  return [...found, ...broken.map((parts) => summary(parts, null))];
}

function summary(parts, end) {
  const lost = [...new Set(parts.filter((one) => one.kind === "worker_lost").map((one) => one.worker))];
  const workers = lost.length || !end?.worker ? lost : [end.worker];
  const killed = workers.length > 0 && workers.every((name) => parts.some((one) => one.kind === "worker_signalled" && one.worker === name && one.message.includes("SIGKILL")));
  return {
    job: parts[0].job, seq: parts[0].seq, time_s: parts[0].time_s, step: end?.step ?? 0, parts, workers,
    is_fault: workers.length > 0 || parts.some((one) => ["ring_broken", "replicas_diverged"].includes(one.kind)),
    title: workers.length ? `${workers.join(", ")} ${killed ? "killed" : "lost"}` : end?.details.cause ?? parts[0].message,
    detected_s: end?.details.detected_after_s ?? null, recovered_s: end?.details.recovered_after_s ?? null,
    redone: end?.details.steps_redone ?? 0, lost: end?.details.steps_lost ?? 0,
  };
}

let grouped = { from: null, found: [] }; // of the newest events, which several cards look at
export function faultsOf(job) {
  if (grouped.from !== events()) grouped = { from: events(), found: incidentsOf(events()) };
  return grouped.found.filter((one) => one.job === job && one.is_fault);
}

// Where a job's curves are marked: [{ step, time_s, label }], oldest first.
export async function incidentMarks(job) {
  await readEventsOf(job);
  return faultsOf(job).filter((one) => one.recovered_s !== null)
    .map((one) => ({ step: one.step, time_s: one.time_s, label: `${one.title}, recovered in ${seconds(one.recovered_s)}` }));
}

// Whether the replicas had the same state when they were last compared; empty if they have not been since.
function replicas(one, job) {
  const digests = Object.values(job?.result?.replica_digests ?? {});
  if (digests.length) return new Set(digests).size === 1 ? "replicas equal" : "replicas differ";
  const every = job?.spec?.train?.digest_every ?? 0;
  const diverged = events().some((event) => event.job === one.job && event.kind === "replicas_diverged" && event.seq > one.seq);
  if (diverged) return "replicas differed";
  return every && job.step - one.step >= every ? "replicas equal" : "";
}

// One incident as a card; `job` is the answer about its job, if it is known.
export function incidentCard(one, job = null) {
  const over = one.recovered_s !== null;
  const facts = over
    ? [`detected in ${seconds(one.detected_s ?? 0)}`, `recovered in ${seconds(one.recovered_s)}`, `${counted(one.lost, "step")} lost`, replicas(one, job)]
    : ["recovering …"];
  const begun = one.parts[0].time_s;
  return h("section", { class: `card incident ${over ? one.lost ? "warn" : "good" : "bad"}`, "data-key": `incident-${one.seq}`, "aria-label": `Incident: ${one.title}` },
    h("p", { class: "headline" }, h("strong", {}, one.title), facts.filter(Boolean).map((text) => [" · ", h("span", { class: "fact" }, text)])),
    h("details", {}, h("summary", {}, `${clock(one.time_s)}${one.step ? ` · step ${one.step}` : ""} · ${counted(one.parts.length, "event")}`),
      h("ol", { class: "incidents" }, one.parts.slice(0, MOST_PARTS).map((part) => h("li", { "data-key": `part-${part.seq}` },
        h("span", { class: "faint num" }, `+${(part.time_s - begun).toFixed(3)} s`),
        h("div", {}, h("span", { class: `what ${level(part.kind)}` }, kind(part.kind)), h("div", { class: "soft small" }, part.message)))))));
}

// What faults have cost a job so far, in a row.
export function faultStrip(job) {
  const faults = faultsOf(job.id), over = faults.filter((one) => one.recovered_s !== null);
  const time_s = over.reduce((sum, one) => sum + one.detected_s + one.recovered_s, 0);
  const rows = events().some((one) => one.job === job.id && one.kind === "rows_not_as_planned");
  const cell = (value, label) => h("div", {}, h("strong", {}, value), h("span", {}, label));
  return h("section", { class: "card strip", "data-key": "strip", "aria-label": "Faults of the job" },
    cell(over.length, over.length === 1 ? "fault survived" : "faults survived"),
    cell(job.steps_lost, job.steps_lost === 1 ? "step lost" : "steps lost"),
    cell(over.length ? seconds(time_s) : "0 s", "time lost"),
    cell(rows ? "no" : "yes", "every row used exactly once"));
}
