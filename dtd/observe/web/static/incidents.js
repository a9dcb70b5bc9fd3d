// What happened: a time line, and each incident in words.

import { get } from "./api.js";
import { h, render } from "./dom.js";
import { chartCard, failed, gravity, incidentList } from "./parts.js";
import { colour, draw, plain } from "./plots.js";
import { counted, kind } from "./words.js";

const MOST = 5000;
const PAGE = 500;

export function openIncidents({ main, world }) {
  const closing = new AbortController();
  const seen = { all: [], newest: 0, error: null, busy: false };
  const wanted = { text: "", kind: "", job: "" };

  async function look() {
    if (seen.busy) return;
    seen.busy = true;
    try {
      const found = await get("events", { after: seen.newest || "" }, closing.signal);
      seen.all = [...seen.all, ...found.events].slice(-MOST);
      seen.newest = Math.max(seen.newest, found.next);
      seen.error = null;
    } catch (error) { if (error.name !== "AbortError") seen.error = error; else return; } finally { seen.busy = false; }
    show();
    plot();
  }

  async function older() {
    const first = seen.all[0]?.seq ?? 1;
    const found = await get("events", { after: Math.max(1, first - PAGE - 1) }, closing.signal);
    seen.all = [...found.events.filter((one) => one.seq < first), ...seen.all];
    show();
    plot();
  }

  function matching() {
    return seen.all.filter((one) => (!wanted.kind || one.kind === wanted.kind) && (!wanted.job || one.job === wanted.job)
      && `${one.kind} ${one.worker} ${one.job} ${one.message}`.toLowerCase().includes(wanted.text));
  }

  function plot() {
    const place = document.getElementById("time-line");
    const shown = matching();
    if (!place) return;
    draw(place, () => [["bad", "grave", "series-6"], ["warn", "notable", "series-2"], ["good", "usual", "series-3"]].map(([level, name, tint]) => {
      const these = shown.filter((one) => gravity(one.kind) === level);
      return {
        x: these.map((one) => new Date(one.time_s * 1000)), y: these.map((one) => kind(one.kind)), name, mode: "markers", type: "scatter",
        marker: { size: 11, color: colour(tint), symbol: level === "bad" ? "x" : level === "warn" ? "diamond" : "circle", line: { width: 1, color: colour("card") } },
        text: these.map((one) => plain([one.worker, one.job, one.message].filter(Boolean).join(": ").slice(0, 120))), hovertemplate: "%{text}<br>%{x}<extra></extra>",
      };
    }), { hovermode: "closest", showlegend: true, yaxis: { type: "category", automargin: true, title: { text: "" } }, xaxis: { type: "date" } });
  }

  function pick(name, label, values) {
    return h("div", { class: "field" }, h("label", { for: `pick-${name}` }, label),
      h("select", { id: `pick-${name}`, onchange: (event) => { wanted[name] = event.target.value; show(); plot(); } },
        h("option", { value: "" }, "all"), values.map((one) => h("option", { value: one, selected: one === wanted[name] }, name === "kind" ? kind(one) : one))));
  }

  function show() {
    const shown = matching();
    const of = (name) => [...new Set(seen.all.map((one) => one[name]).filter(Boolean))].sort();
    render(main,
      h("div", { class: "head" }, h("h1", {}, "Incidents"), h("span", { class: "soft" }, counted(shown.length, "incident"))),
      seen.error && failed(seen.error),
      h("section", { class: "card", "aria-label": "Filter" }, h("div", { class: "fields" },
        h("div", { class: "field grow" }, h("label", { for: "find" }, "Search"), h("input", { id: "find", type: "search", oninput: (event) => { wanted.text = event.target.value.toLowerCase(); show(); plot(); } })),
        pick("kind", "Kind", of("kind")), pick("job", "Job", of("job")))),
      chartCard("time-line", "Time line", { tall: true, label: `Time line of ${counted(shown.length, "incident")}; the list below says the same` }),
      h("section", { class: "card", "aria-label": "List" }, incidentList(shown.slice(-300).reverse()),
        seen.all.length >= PAGE && seen.all[0].seq > 1 && h("button", { type: "button", onclick: older }, "Show older ones")));
  }

  show();
  look();
  return { title: "Incidents", hear(topic) { if (topic === "incidents" && world.newest > seen.newest) look(); }, close() { closing.abort(); } };
}
