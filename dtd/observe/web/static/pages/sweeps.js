// Sweeps: all of them, and one with its trials, what matters for the metric, and the best one.

import { get } from "../api.js";
import { h, render } from "../dom.js";
import { chartCard, dash, empty, failed, jobLink, state, table, tile, tiles } from "../parts.js";
import { axesOf, parallel } from "../figures/parallel.js";
import { colour, draw } from "../figures/plots.js";
import { clock, counted, number, shown, span, whole } from "../words.js";

const EVERY_MS = 3000;
const OPEN = ["chosen", "running", "pruning"];
const MARGINS = 80;
const MOST_ROWS = 200;
const SHARES = [[1, "all trials"], [0.5, "the better half"], [0.25, "the best quarter"], [0.1, "the best tenth"]];

export function openSweeps(given) {
  return given.parts[0] ? openSweep(given) : openList(given);
}

const sweepLink = (id) => h("a", { href: `#/sweeps/${encodeURIComponent(id)}` }, id);
const took = (one) => span(one.began_s ? (one.ended_s || Date.now() / 1000) - one.began_s : null);

// --- all of them --------------------------------------------------------------------------------

function openList({ main }) {
  const closing = new AbortController();
  let [found, error] = [null, null];
  const timer = setInterval(look, EVERY_MS);

  async function look() {
    if (document.hidden) return;
    try { found = (await get("sweeps", {}, closing.signal)).sweeps; error = null; } catch (said) {
      if (said.name === "AbortError") return;
      error = said;
    }
    show();
  }

  function show() {
    const headings = [{ name: "Sweep" }, { name: "Job" }, { name: "State" }, { name: "Method" }, { name: "Metric" }, { name: "Trials", num: true }, { name: "Duration", num: true }, { name: "Started" }, { name: "Note" }];
    render(main,
      h("div", { class: "head" }, h("h1", {}, "Sweeps"), found && h("span", { class: "soft" }, counted(found.length, "sweep"))),
      error && failed(error),
      h("section", { class: "card", "aria-label": "Sweeps" }, found?.length ? table("Sweeps", headings, found.map((one) => h("tr", { "data-key": one.id },
        h("th", { scope: "row" }, sweepLink(one.id)), h("td", {}, one.job), h("td", {}, state(one.state)), h("td", {}, one.pruner === "none" ? one.method : `${one.method}, ${one.pruner}`),
        h("td", {}, `${one.direction} ${one.metric}`), h("td", { class: "num" }, `${whole(one.begun)} / ${whole(one.planned)}`), h("td", { class: "num" }, took(one)),
        h("td", { class: "num soft" }, clock(one.began_s)), h("td", { class: "soft small text" }, dash(one.reason)))))
        : found ? empty("No sweeps yet", "A sweep runs one job with many settings and reports the best.", "dtdctl sweep SWEEP.toml") : h("p", { class: "empty" }, "…")));
  }

  show();
  look();
  return { title: "Sweeps", hear() {}, close() { clearInterval(timer); closing.abort(); } };
}

// --- one ----------------------------------------------------------------------------------------

function openSweep({ main, world, parts, confirmed }) {
  const id = parts[0];
  const closing = new AbortController();
  const seen = { sweep: null, error: null, share: 1, order: "best", lit: null, ranges: {}, rows: MOST_ROWS };
  const timer = setInterval(look, EVERY_MS);
  addEventListener("resize", () => show(), { signal: closing.signal });

  async function look(first = false) {
    if ((document.hidden || seen.sweep?.ended_s) && !first) return;
    try { seen.sweep = await get(`sweeps/${encodeURIComponent(id)}`, {}, closing.signal); seen.error = null; } catch (error) {
      if (error.name === "AbortError") return;
      seen.error = error;
    }
    show();
    plot();
  }

  function plot() {
    const place = document.getElementById("values");
    if (place) draw(place, () => valueTraces(seen.sweep), { xaxis: { title: { text: "trial" }, rangemode: "tozero", dtick: seen.sweep.trials.length < 10 ? 1 : undefined }, hovermode: "closest", showlegend: true });
  }

  function light(trial) {
    seen.lit = trial;
    for (const one of main.querySelectorAll("[data-trial]")) one.classList.toggle("lit", Number(one.dataset.trial) === trial);
    main.querySelector(".parallel")?.classList.toggle("dim", trial !== null);
  }

  function narrow(name, range) {
    if (range) seen.ranges[name] = range;
    else delete seen.ranges[name];
    show();
  }

  function show() {
    const { sweep } = seen;
    if (seen.error) { render(main, h("h1", {}, id), failed(seen.error)); return; }
    if (!sweep) { render(main, h("h1", {}, id), h("p", { class: "empty" }, "…")); return; }
    const [axes, kept] = [axesOf(sweep), chosen(sweep, seen)];
    const known = sweep.trials.filter((one) => one.value !== null);
    render(main,
      h("div", { class: "head" }, h("h1", {}, id), state(sweep.state), h("span", { class: "soft" }, `${sweep.method} over ${sweep.job}: ${sweep.direction} ${sweep.metric}`),
        world.me.may_act && !sweep.ended_s && h("span", { class: "push" }, h("button", { class: "danger", type: "button", onclick: () => confirmed(
          `Cancel ${id}?`, "Its jobs stop after their current step. Results so far are kept.", "Cancel the sweep", { what: "cancel-sweep", sweep: id }) }, "Cancel"))),
      summary(sweep),
      h("section", { class: "card", "data-key": "parallel", "aria-labelledby": "parallel-title" },
        h("div", { class: "card-head" }, h("h2", { id: "parallel-title" }, "Settings and values"), h("span", { class: "note" }, "drag along an axis to choose a part of it"),
          h("span", { class: "push fields" }, select("share", "Show", SHARES.map(([one, name]) => [one, name]), seen.share, (value) => { seen.share = Number(value); show(); }),
            Object.keys(seen.ranges).length ? h("button", { type: "button", onclick: () => { seen.ranges = {}; show(); } }, "Show all") : null)),
        sweep.trials.length ? parallel(sweep, axes, kept, seen, { room: main.clientWidth - MARGINS, light, narrow }) : h("p", { class: "empty" }, "No trials yet.")),
      h("div", { class: "grid" },
        known.length > 0 && chartCard("values", `${sweep.metric} by trial`, { value: number(sweep.best?.value), note: "best so far", label: valuesTold(sweep) }),
        importance(sweep)),
      trialsCard(sweep, kept, seen, { light, order: (value) => { seen.order = value; show(); }, all: () => { seen.rows = Infinity; show(); } }));
  }

  show();
  look(true);
  return { title: id, hear(topic) { if (topic === "incidents") look(); }, close() { clearInterval(timer); closing.abort(); } };
}

function select(id, label, options, value, chose) {
  return h("span", { class: "inline" }, h("label", { for: id }, label), h("select", { id, onchange: (event) => chose(event.target.value) },
    options.map(([one, name]) => h("option", { value: one, selected: one === value }, name))));
}

// The trials that are shown: within the ranges that were chosen, and among the best if so wished.
function chosen(sweep, seen) {
  const axes = axesOf(sweep);
  const ranked = byValue(sweep).filter((one) => one.value !== null);
  const best = new Set(ranked.slice(0, Math.max(1, Math.ceil(seen.share * ranked.length))).map((one) => one.number));
  const within = (one) => axes.every((axis) => {
    const [range, at] = [seen.ranges[axis.name], axis.at(axis.of(one))];
    return !range || (at !== null && at >= range[0] && at <= range[1]);
  });
  return new Set(sweep.trials.filter((one) => (seen.share === 1 || best.has(one.number)) && within(one)).map((one) => one.number));
}

function byValue(sweep) {
  const sign = sweep.direction === "maximize" ? -1 : 1;
  const rank = (one) => (one.value === null ? Infinity : sign * one.value);
  return [...sweep.trials].sort((a, b) => (rank(a) === rank(b) ? a.number - b.number : rank(a) - rank(b)));
}

function summary(sweep) {
  const count = (...states) => sweep.trials.filter((one) => states.includes(one.state)).length;
  const { best } = sweep;
  return h("section", { class: "card", "data-key": "summary", "aria-label": "The sweep" },
    sweep.reason && h("p", { class: "soft", css: { "margin-bottom": "12px" } }, sweep.reason),
    tiles(
      tile(`Best ${sweep.metric}`, best ? number(best.value) : "–"), tile("In trial", best ? [jobLink(best.job, `${best.number}: ${best.job}`)] : "–", true),
      tile("Trials", `${whole(sweep.begun)} / ${whole(sweep.planned)}`), tile("Running", whole(count(...OPEN))), tile("Done", whole(count("done"))),
      tile("Pruned", whole(count("pruned"))), tile("Failed", whole(count("failed"))), tile("Duration", took(sweep))),
    best && h("p", { class: "soft small", css: { "margin-top": "12px" } }, "Best settings: ", h("span", { class: "mono" }, Object.entries(best.params).map(([name, value]) => `${name} = ${shown(value)}`).join(", "))));
}

function valueTraces(sweep) {
  const better = sweep.direction === "maximize" ? Math.max : Math.min;
  const of = (name) => sweep.trials.filter((one) => one.state === name && one.value !== null);
  const points = (name, title, tint, symbol) => ({
    x: of(name).map((one) => one.number), y: of(name).map((one) => one.value), name: title, mode: "markers", type: "scatter",
    marker: { size: 9, color: colour(tint), symbol }, hovertemplate: `trial %{x}: %{y:.5g}<extra>${title}</extra>`,
  });
  const done = of("done");
  const best = done.map((_, at) => done.slice(0, at + 1).map((one) => one.value).reduce((a, b) => better(a, b)));
  const line = { x: done.map((one) => one.number), y: best, name: "best so far", mode: "lines", line: { shape: "hv", width: 2, color: colour("series-3") }, hoverinfo: "skip" };
  return [line, points("done", "done", "series-1", "circle"), points("pruned", "pruned", "series-2", "diamond"), points("failed", "failed", "series-6", "x")].filter((one) => one.x.length);
}

function valuesTold(sweep) {
  const done = sweep.trials.filter((one) => one.state === "done").length;
  return `${sweep.metric} of ${counted(done, "trial")} that are done; the best is ${number(sweep.best?.value)}; the table below has all of them`;
}

function importance(sweep) {
  const ranked = Object.entries(sweep.importance).sort((a, b) => b[1] - a[1]);
  const [most] = ranked.map(([, share]) => share);
  return h("section", { class: "card", "data-key": "importance", "aria-labelledby": "importance-title" },
    h("div", { class: "card-head" }, h("h2", { id: "importance-title" }, "How much each setting matters"), h("span", { class: "note" }, "PED-ANOVA")),
    ranked.length ? h("ul", { class: "split bars" }, ranked.map(([name, share]) => h("li", { "data-key": name },
      h("span", { class: "mono" }, name),
      h("span", { class: "parts", "aria-hidden": "true" }, h("i", { css: { "--tint": "var(--series-1)", width: `${most > 0 ? (100 * share) / most : 0}%` } })),
      h("span", { class: "num soft" }, `${Math.round(100 * share)} %`))))
      : h("p", { class: "empty" }, "Not known yet: some trials have to be done first, with values that differ."));
}

function trialsCard(sweep, kept, seen, { light, order, all }) {
  const names = Object.keys(sweep.space);
  const listed = (seen.order === "best" ? byValue(sweep) : [...sweep.trials].reverse()).filter((one) => kept.has(one.number));
  const headings = [{ name: "Trial", num: true }, { name: "Job" }, { name: "State" }, { name: sweep.metric, num: true }, { name: "Evaluations", num: true }, ...names.map((name) => ({ name, num: true })), { name: "Note" }];
  return h("section", { class: "card", "data-key": "trials", "aria-labelledby": "trials-title" },
    h("div", { class: "card-head" }, h("h2", { id: "trials-title" }, "Trials"), h("span", { class: "note" }, listed.length === sweep.trials.length ? counted(listed.length, "trial") : `${listed.length} of ${counted(sweep.trials.length, "trial")}`),
      h("span", { class: "push fields" }, select("order", "Order", [["best", "best first"], ["newest", "newest first"]], seen.order, order))),
    listed.length ? table("Trials", headings, listed.slice(0, seen.rows).map((one) => h("tr", { "data-key": `trial-${one.number}`, "data-trial": one.number, class: seen.lit === one.number ? "lit" : null, onpointerenter: () => light(one.number), onpointerleave: () => light(null) },
      h("th", { scope: "row", class: "num" }, one.number),
      h("td", { class: "still" }, one.job ? jobLink(one.job, one.job, { onfocus: () => light(one.number), onblur: () => light(null) }) : "–", one.number === sweep.best?.number ? h("span", { class: "state good best" }, "best") : ""), h("td", {}, state(one.state)), h("td", { class: "num" }, number(one.value, 5)), h("td", { class: "num" }, whole(one.evaluations)),
      names.map((name) => h("td", { class: "num mono" }, shown(one.params[name]))),
      h("td", { class: "soft small text" }, dash(one.reason))))) : h("p", { class: "empty" }, "None."),
    listed.length > seen.rows && h("button", { type: "button", onclick: all }, `Show all ${listed.length}`));
}
