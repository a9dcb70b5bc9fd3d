// Events of the cluster: a time line and a list, problems first of all.

import { h, render } from "../dom.js";
import { events, hasOlder, newestEvent, readEvents, readOlder } from "../incidents/eventlog.js";
import { chartCard, eventList, failed, level } from "../parts.js";
import { colour, draw, plain } from "../figures/plots.js";
import { counted, kind } from "../words.js";

const MOST_LISTED = 300;
const LEVELS = { problems: ["error", "warning"], errors: ["error"], all: ["error", "warning", "info"] };
const MARKS = [["error", "series-6", "x"], ["warning", "series-2", "diamond"], ["info", "series-3", "circle"]];

export function openEvents({ main, world }) {
  const wanted = { text: "", level: "problems", kind: "", job: "" };
  let [error, closed] = [null, false];

  async function look(read) {
    try { await read(); error = null; } catch (found) { error = found; }
    again();
  }

  function again() {
    if (closed) return;
    show();
    plot();
  }

  function matching() {
    return events().filter((one) => LEVELS[wanted.level].includes(level(one.kind)) && (!wanted.kind || one.kind === wanted.kind) && (!wanted.job || one.job === wanted.job)
      && `${one.kind} ${one.worker} ${one.job} ${one.message}`.toLowerCase().includes(wanted.text));
  }

  function plot() {
    const place = document.getElementById("time-line");
    if (!place) return;
    const shown = matching();
    draw(place, () => MARKS.map(([name, tint, symbol]) => {
      const these = shown.filter((one) => level(one.kind) === name);
      return {
        x: these.map((one) => new Date(one.time_s * 1000)), y: these.map((one) => kind(one.kind)), name, mode: "markers", type: "scatter",
        marker: { size: 11, color: colour(tint), symbol, line: { width: 1, color: colour("card") } },
        text: these.map((one) => plain([one.worker, one.job, one.message].filter(Boolean).join(": ").slice(0, 120))), hovertemplate: "%{text}<br>%{x}<extra></extra>",
      };
    }), { hovermode: "closest", showlegend: true, yaxis: { type: "category", automargin: true, title: { text: "" } }, xaxis: { type: "date" } });
  }

  function pick(name, label, values) {
    return h("div", { class: "field" }, h("label", { for: `pick-${name}` }, label),
      h("select", { id: `pick-${name}`, onchange: (event) => { wanted[name] = event.target.value; again(); } },
        values.map(([value, text]) => h("option", { value, selected: value === wanted[name] }, text))));
  }

  const allOf = (name, text) => [["", "all"], ...[...new Set(events().map((one) => one[name]).filter(Boolean))].sort().map((one) => [one, text(one)])];

  function show() {
    const shown = matching();
    const none = !events().length ? "No events yet." : wanted.level === "problems" && !wanted.text && !wanted.kind && !wanted.job ? "No problems. Set the level to “all” to see every event." : "No event matches.";
    render(main,
      h("div", { class: "head" }, h("h1", {}, "Events"), h("span", { class: "soft" }, `${counted(shown.length, "event")}${shown.length > MOST_LISTED ? `, the last ${MOST_LISTED} listed` : ""}`)),
      error && failed(error),
      h("section", { class: "card", "aria-label": "Filter" }, h("div", { class: "fields" },
        h("div", { class: "field grow" }, h("label", { for: "find" }, "Search"), h("input", { id: "find", type: "search", oninput: (event) => { wanted.text = event.target.value.toLowerCase(); again(); } })),
        pick("level", "Level", [["problems", "problems"], ["errors", "errors only"], ["all", "all"]]), pick("kind", "Kind", allOf("kind", kind)), pick("job", "Job", allOf("job", String)))),
      shown.length > 0 && chartCard("time-line", "Time line", { tall: true, label: `Time line of ${counted(shown.length, "event")}, which are listed below` }),
      h("section", { class: "card", "data-key": "list", "aria-label": "List" },
        shown.length ? eventList(shown.slice(-MOST_LISTED).reverse()) : h("p", { class: "empty" }, none),
        hasOlder() && h("button", { type: "button", onclick: () => look(readOlder) }, "Load older events")));
  }

  show();
  look(readEvents);
  return { title: "Events", hear(topic) { if (topic === "incidents" && world.newest > newestEvent()) look(readEvents); }, close() { closed = true; } };
}
