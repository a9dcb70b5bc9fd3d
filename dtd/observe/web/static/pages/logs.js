// What a job's own code printed: searched by the coordinator, and followed while the job runs.

import { get } from "../api.js";
import { h, render } from "../dom.js";
import { failed } from "../parts.js";
import { clock, counted } from "../words.js";

const EVERY_MS = 2000;
const MOST = 3000;
const WAIT_MS = 250;

export function openLogs({ main, world, parts }) {
  const closing = new AbortController();
  const seen = { job: parts[0] ?? "", jobs: [], lines: [], after: 0, at_end: false, error: null, follow: true, text: "", worker: "", workers: new Set() };
  let [round, waiting] = [0, 0];
  const timer = setInterval(() => { if (seen.at_end && !document.hidden) look(); }, EVERY_MS);

  async function begin() {
    try {
      seen.jobs = (await get("jobs", {}, closing.signal)).jobs.map((one) => one.id);
      seen.job ||= world.status?.job?.id ?? world.status?.last_job?.id ?? seen.jobs[0] ?? "";
    } catch (error) { if (error.name === "AbortError") return; seen.error = error; }
    again();
  }

  function again() {
    round += 1;
    Object.assign(seen, { lines: [], after: 0, at_end: false, error: null });
    show();
    look();
  }

  async function look() {
    const mine = round;
    if (!seen.job) return;
    try {
      do {
        const found = await get(`jobs/${encodeURIComponent(seen.job)}/logs`, { after: seen.after || "", text: seen.text, worker: seen.worker }, closing.signal);
        if (mine !== round) return;
        for (const line of found.lines) seen.workers.add(line.worker);
        seen.lines = [...seen.lines, ...found.lines].slice(-MOST);
        [seen.after, seen.at_end] = [found.next, found.at_end];
        show();
      } while (!seen.at_end);
    } catch (error) {
      if (error.name === "AbortError") return;
      seen.error = error;
      show();
    }
  }

  function pick(id, label, values, value, chosen) {
    return h("div", { class: "field" }, h("label", { for: id }, label), h("select", { id, onchange: (event) => { if (event.target.isConnected) chosen(event.target.value); } },
      values.map(([one, name]) => h("option", { value: one, selected: one === value }, name))));
  }

  function show() {
    render(main,
      h("div", { class: "head" }, h("h1", {}, "Output"), h("span", { class: "soft", id: "found" }, `${counted(seen.lines.length, "line")}${seen.text ? " found" : ""}${seen.at_end ? "" : " …"}`)),
      seen.error && failed(seen.error),
      h("section", { class: "card", "aria-label": "Output of a job" },
        h("div", { class: "fields", css: { "margin-bottom": "14px" } },
          pick("log-job", "Job", [...new Set([seen.job, ...seen.jobs])].map((one) => [one, one]), seen.job, (value) => { location.hash = `#/logs/${encodeURIComponent(value)}`; }),
          pick("log-worker", "Worker", [["", "all"], ...[...seen.workers].sort().map((one) => [one, one])], seen.worker, (value) => { seen.worker = value; again(); }),
          h("div", { class: "field grow" }, h("label", { for: "log-text" }, "Search"), h("input", { id: "log-text", type: "search", oninput: (event) => {
            seen.text = event.target.value;
            clearTimeout(waiting);
            waiting = setTimeout(again, WAIT_MS);
          } }))),
        seen.lines.length ? h("ol", { class: "lines", tabindex: "0", role: "log", "aria-live": "off", "aria-label": "Lines" }, seen.lines.map((one) => h("li", { "data-key": `line-${one.seq}` },
          h("span", { class: "faint num" }, clock(one.time_s)), h("span", { class: "faint" }, `${one.rank} ${one.worker}`), h("span", { class: "text" }, marked(one.text, seen.text)))))
          : h("p", { class: "empty" }, seen.at_end ? (seen.text ? "No matching lines." : "No output yet.") : "…")));
    const list = main.querySelector(".lines");
    if (list && !seen.text && list.dataset.read !== "1") list.scrollTop = list.scrollHeight;
    list?.addEventListener("scroll", () => { list.dataset.read = list.scrollTop + list.clientHeight < list.scrollHeight - 30 ? "1" : ""; }, { passive: true });
  }

  begin();
  show();
  return { title: "Output", hear() {}, close() { clearInterval(timer); clearTimeout(waiting); closing.abort(); } };
}

// The text with what was searched for marked.
function marked(text, wanted) {
  if (!wanted) return [text];
  const parts = [];
  const [low, find] = [text.toLowerCase(), wanted.toLowerCase()];
  let at = 0;
  for (let next = low.indexOf(find); next >= 0 && low.length === text.length; next = low.indexOf(find, at)) {
    parts.push(text.slice(at, next), h("mark", {}, text.slice(next, next + find.length)));
    at = next + find.length;
  }
  return [...parts, text.slice(at)];
}
