// What several pages are made of: states, tiles, tables, incidents, cards with a curve, questions.

import { h } from "./dom.js";
import { post } from "./api.js";
import { NOTHING, clock, kind } from "./words.js";

const COPIED_MS = 2000;
const GOOD = ["running", "done", "finished"];
const WARN = ["waiting", "warming", "forming", "stopping", "saving", "queued", "pruning", "pruned", "chosen", "cancelling", "cancelled", "away", "frozen", "draining"];
const BAD = ["failed", "lost", "barred", "refused", "released"];

export function tone(state) {
  if (GOOD.includes(state)) return "good";
  if (WARN.includes(state)) return "warn";
  return BAD.includes(state) ? "bad" : "";
}

export const state = (name) => h("span", { class: `state ${tone(name)}` }, name);

export const tile = (label, value, mild = false) =>
  h("div", { class: "tile" }, h("dt", {}, label), h("dd", { class: mild ? "mild" : "num" }, value));

export const tiles = (...pairs) => h("dl", { class: "tiles" }, pairs.filter(Boolean));

export const jobLink = (id, text = id, more = {}) => h("a", { ...more, href: `#/job/${encodeURIComponent(id)}` }, text);

export function table(label, headings, rows) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    h("table", {}, h("caption", { class: "unseen" }, label),
      h("thead", {}, h("tr", {}, headings.map((one) =>
        h("th", { scope: "col", class: one.num ? "num" : null }, one.hidden ? h("span", { class: "unseen" }, one.name) : one.name)))),
      h("tbody", {}, rows)));
}

export function alert(message, remedy = "", bad = false) {
  return h("div", { class: `alert${bad ? " bad" : ""}` }, h("p", {}, message), remedy && h("p", {}, remedy));
}

export const failed = (error) => h("div", { role: "alert" }, alert(error.message, error.remedy, true));

// A card that a curve is drawn in.
export function chartCard(id, title, { value = "", note = "", label = title, tall = false, above = null } = {}) {
  return h("section", { class: "card", "data-key": id, "aria-labelledby": `${id}-title` },
    h("div", { class: "card-head" }, h("h2", { id: `${id}-title` }, title), note && h("span", { class: "note" }, note), h("span", { class: "value num" }, value)), above,
    h("div", { class: "plot", "data-keep": true }, h("div", { class: "plot-tools" }), h("div", { id, class: `chart${tall ? " tall" : ""}`, role: "img", "aria-label": label })));
}

// Levels of events; any other kind is a warning.
export const ERRORS = [
  "internal_error", "core_begun_again", "job_failed", "steps_lost", "state_discarded", "replicas_diverged", "shards_missing",
  "rows_not_as_planned", "nothing_trained", "checkpoint_contradicted", "checkpoint_failed", "store_went_back", "metrics_stopped",
];
export const INFOS = [
  "worker_registered", "job_started", "job_warming", "job_saving", "job_resumed", "job_done", "job_cancelled", "job_deleted", "sweep_ended",
  "generation_forming", "generation_running", "generation_ending", "generation_adopted", "recovered", "link_good", "training_goes_on",
  "weights_renamed", "model_registered", "model_copied", "model_deleted", "checkpoint_deleted", "metrics_resumed", "tracking_resumed",
  "epoch_order_kept",
];
export const level = (name) => (ERRORS.includes(name) ? "error" : INFOS.includes(name) ? "info" : "warning");

export function eventList(found) {
  if (!found.length) return h("p", { class: "empty" }, "No events.");
  return h("ol", { class: "incidents" }, found.map((one) => h("li", { "data-key": `event-${one.seq}` },
    h("span", { class: "faint num" }, clock(one.time_s)),
    h("div", {},
      h("span", { class: `what ${level(one.kind)}` }, kind(one.kind)),
      h("span", { class: "tag" }, [one.worker, one.job, one.generation ? `generation ${one.generation}` : "", one.step ? `step ${one.step}` : ""].filter(Boolean).join(" · ")),
      h("div", { class: "soft small" }, one.message)))));
}

// A command for a terminal, which can be copied.
export function command(text) {
  const copy = async (event) => {
    const button = event.currentTarget;
    try { await navigator.clipboard.writeText(text); } catch {
      getSelection().selectAllChildren(button.previousSibling);
      return;
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, COPIED_MS);
  };
  return h("div", { class: "command" }, h("code", {}, text),
    h("button", { type: "button", "data-key": `copy ${text}`, "data-keep": true, "aria-label": `Copy ${text}`, onclick: copy }, "Copy"));
}

// What is missing, why, and the command with which to begin.
export function empty(what, why, begin = "") {
  return h("div", { class: "empty" }, h("p", {}, h("strong", {}, what)), h("p", {}, why), begin && command(begin));
}

export const noJobs = () => empty("No jobs yet", "A job file names the code, the data and the number of epochs.", "dtdctl submit JOB.toml");

export const dash = (value) => (value === "" || value === null || value === undefined ? NOTHING : value);

// Ask before something is changed, and do it; what cannot be done is said in the same place.
export function confirmed(question, explanation, verb, order) {
  const said = h("div", { role: "alert" });
  const sure = h("button", { class: "danger sure", type: "button" }, verb);
  const box = h("dialog", { "aria-labelledby": "ask-title" },
    h("h2", { id: "ask-title" }, question), h("p", { class: "soft" }, explanation), said,
    h("div", { class: "choices" }, h("button", { type: "button", onclick: () => box.close() }, "Not now"), sure));
  sure.onclick = async () => {
    sure.disabled = true;
    try { await post("act", order); box.close(); } catch (error) {
      said.replaceChildren(h("p", { class: "error" }, error.message), h("p", { class: "small soft" }, error.remedy));
      sure.disabled = false;
    }
  };
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
}
