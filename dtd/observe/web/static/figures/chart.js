// The chart of curves that all pages share: one run or several, training and evaluation, by step, epoch
// or time, smoothed, linear or logarithmic.  What is chosen stays in this browser.

import { h, render } from "../dom.js";
import { chartCard } from "../parts.js";
import { colour, draw, plain, redrawAll, transparent, zoomedTo } from "./plots.js";
import { best, isSpread, known, newest, smoothed, withGaps } from "./points.js";
import { number, rate } from "../words.js";

const KEY = "dtd-charts";
const MOST_HIDDEN = 200;
const MOST_SMOOTHING = 0.99;
const AXES = { step: "Step", epoch: "Epoch", time: "Time" };
const UNITS = [[1, "seconds"], [60, "minutes"], [3600, "hours"], [86400, "days"]];
const LEAST_UNITS = 3; // the axis of time is in the largest unit of which it shows so many
const WHOLE_TICKS = 8;
const TINTS = 8;

// --- choices ------------------------------------------------------------------------------------

const chosen = { smoothing: 0, axis: "step", log: {}, hidden: [], ...remembered() };

function remembered() {
  try { return JSON.parse(localStorage.getItem(KEY)); } catch { return null; }
}

function choose(change) {
  Object.assign(chosen, change);
  localStorage.setItem(KEY, JSON.stringify(chosen));
  for (const bar of document.querySelectorAll(".chart-choices")) render(bar, choices());
  redrawAll();
}

function hide(name, is_hidden) {
  choose({ hidden: [...chosen.hidden.filter((one) => one !== name), ...(is_hidden ? [name] : [])].slice(-MOST_HIDDEN) });
}

const choices = () => [
  h("span", { class: "inline" }, h("label", { for: "smoothing" }, "Smoothing"),
    h("input", { id: "smoothing", type: "range", min: 0, max: MOST_SMOOTHING, step: 0.01, value: chosen.smoothing, oninput: (event) => choose({ smoothing: Number(event.target.value) }) }),
    h("span", { class: "num" }, chosen.smoothing.toFixed(2))),
  h("span", { class: "segments", role: "group", "aria-label": "Horizontal axis" }, Object.entries(AXES).map(([axis, name]) =>
    h("button", { type: "button", "aria-pressed": String(chosen.axis === axis), onclick: () => choose({ axis }) }, name)))];

// The choices that all charts of a page share.
export const chartChoices = () => h("div", { class: "chart-choices", role: "group", "aria-label": "Charts", "data-key": "chart-choices" }, choices());

// --- figures of runs ----------------------------------------------------------------------------

// A run is { id, curves }, and `spec` and `tint` if known.  A chart of several tells them by colour; that
// of one run tells training from evaluation.
const FIGURES = [
  { name: "loss", title: "Loss", evaluation: "eval/loss", words: number, tint: "series-1", has_best: true, may_be_log: true },
  { name: "rows_per_s", title: "Throughput", words: rate, tint: "series-3", from_zero: true },
  { name: "learning_rate", title: "Learning rate", words: number, tint: "series-5", from_zero: true },
  { name: "gradient_norm", title: "Gradient norm", words: number, tint: "series-4", may_be_log: true },
];
const EVALUATION = "eval/";

function figuresOf(runs) {
  const names = runs.flatMap((run) => run.curves.series.filter((one) => newest(one) !== null).map((one) => one.name));
  const evaluations = [...new Set(names.filter((name) => name.startsWith(EVALUATION)))].sort().filter((name) => name !== FIGURES[0].evaluation)
    .map((name) => ({ name, title: `Evaluation: ${name.slice(EVALUATION.length)}`, words: number, tint: "series-2", has_best: true }));
  return [...FIGURES.filter((one) => names.includes(one.name) || names.includes(one.evaluation)), ...evaluations];
}

const placeOf = (figure) => `curve-${figure.name}`;

export function figureCards(runs, only = undefined) {
  return figuresOf(runs).filter((one) => !only || only.includes(one.name)).map((figure) => {
    const last = runs.length === 1 ? figure.words(newest(runs[0].curves.named(figure.name))) : "";
    return chartCard(placeOf(figure), figure.title, { value: last, label: runs.map((run) => told(run, figure)).join("; ") });
  });
}

// `marks` are incidents: { step, time_s, label }, and `curves` if they are of one run among several.
export function drawFigures(runs, marks = []) {
  for (const figure of figuresOf(runs)) drawCurves(document.getElementById(placeOf(figure)), { ...figure, lines: linesOf(runs, figure), marks, is_of_one_run: runs.length === 1 });
}

function linesOf(runs, figure) {
  const is_one = runs.length === 1;
  const is_low_better = figure.has_best ? lowIsBetter(runs, figure.name) : null;
  return runs.flatMap((run, at) => [figure.name, figure.evaluation].filter((name) => run.curves.named(name)).map((name) => {
    const is_evaluation = name.startsWith(EVALUATION);
    const one_name = !figure.evaluation ? figure.title : is_evaluation ? "evaluation" : "training";
    return {
      name: is_one ? one_name : run.id, is_low_better, curves: run.curves, points: known(run.curves.named(name)),
      tint: is_one ? (is_evaluation ? "series-2" : figure.tint) : `series-${1 + (at % TINTS)}`,
      dash: is_evaluation && figure.evaluation && !is_one ? "dot" : "solid", has_dots: is_evaluation,
    };
  }));
}

function lowIsBetter(runs, name) {
  const metric = name.replace(EVALUATION, "");
  const tables = runs.map((run) => run.spec?.checkpoint ?? {});
  const mode = tables.find((one) => one.best_metric === metric)?.best_mode;
  return mode ? mode === "min" : metric.includes("loss");
}

function told(run, figure) {
  const points = known(run.curves.named(figure.name));
  if (!points.length) return `${run.id}, ${figure.title}: nothing yet`;
  return `${run.id}, ${figure.title} by step: ${number(points[0][4])} at ${points[0][0]}, ${number(points.at(-1)[4])} at ${points.at(-1)[1]}`;
}

// --- one chart ----------------------------------------------------------------------------------

// A line is { name, points, curves, tint } and, if wanted, factor, dash, has_dots, is_low_better; one
// without `curves` has its points in seconds.  Areas are stacked lines.
export function drawCurves(place, chart) {
  const shown = () => chart.lines.filter((line) => !chosen.hidden.includes(line.name));
  const isLog = () => chosen.log[chart.name] ?? Boolean(chart.may_be_log && chart.lines.some((line) => isSpread(line.points)));
  let axis = null;
  draw(place, () => {
    axis = axisOf(chart.lines);
    return shown().flatMap((line) => tracesOf(line, axis, chart, shown().length));
  }, () => layoutOf(place, chart, axis, isLog()), () => tools(chart, isLog()));
}

function tools(chart, is_log) {
  const names = new Map(chart.lines.map((line) => [line.name, line.tint]));
  const legend = [...names].map(([name, tint]) => {
    const is_hidden = chosen.hidden.includes(name);
    return h("button", { type: "button", class: "plain key", "aria-pressed": String(!is_hidden), title: is_hidden ? `Show ${name}` : `Hide ${name}`, css: { "--tint": `var(--${tint})` }, onclick: () => hide(name, !is_hidden) }, name);
  });
  return [
    h("span", { class: "keys", role: "group", "aria-label": "Curves" }, names.size > 1 && legend),
    !chart.is_stacked && h("button", { type: "button", class: "plain", "aria-pressed": String(is_log), onclick: () => choose({ log: { ...chosen.log, [chart.name]: !is_log } }) }, "Log scale")];
}

// How positions become places on the horizontal axis.
function axisOf(lines) {
  const of_steps = lines.filter((line) => line.curves);
  if (of_steps.length < lines.length) return { kind: "clock", title: "", at: () => (position) => new Date(position * 1000) };
  if (chosen.axis === "epoch" && of_steps.every((line) => line.curves.steps_per_epoch)) {
    return { kind: "epoch", title: "epoch", at: ({ curves }) => { const many = curves.steps_per_epoch; return (step) => step / many; } };
  }
  if (chosen.axis === "time") {
    const longest = Math.max(...of_steps.map((line) => line.curves.seconds_of(Infinity) ?? 0));
    const [unit_s, unit] = UNITS.findLast(([size], place) => !place || longest >= LEAST_UNITS * size);
    return { kind: `time in ${unit}`, title: `${unit} since the first step`, at: ({ curves }) => { const seconds = curves.seconds_of; return (step) => seconds(step) / unit_s; } };
  }
  return { kind: "step", title: chosen.axis === "epoch" ? "step (the first epoch has not ended)" : "step", at: () => (step) => step };
}

function tracesOf(line, axis, chart, lines) {
  const tint = colour(line.tint);
  const at = axis.at(line);
  const points = chart.is_stacked ? line.points : withGaps(line.points);
  const x = points.map((point) => at(point[1]));
  const column = (place) => points.map((point) => (point[place] === null ? null : point[place] * (line.factor ?? 1)));
  const words = `%{y:.5g}${chart.unit ?? ""}<extra>${plain(line.name)}</extra>`;
  const trace = (y, more) => ({ x, y, name: line.name, mode: line.has_dots || points.length < 3 ? "lines+markers" : "lines", marker: { size: 6, color: tint }, hovertemplate: words, ...more });
  if (chart.is_stacked) return [trace(column(4), { stackgroup: "all", mode: "lines", line: { width: 0, color: tint }, fillcolor: tint })];
  const silent = { mode: "lines", hoverinfo: "skip", hovertemplate: undefined };
  const drawn = [];
  const weight = line.has_dots ? 0 : chosen.smoothing; // evaluations are few, and no noise of batches
  if (weight) drawn.push(trace(column(4), { ...silent, line: { width: 1, color: transparent(tint, 0.3) } }));
  else if (lines <= 2 && points.some((point) => point[3] !== point[5])) {
    const none = { width: 0, color: tint };
    drawn.push(trace(column(3), { ...silent, line: none }), trace(column(5), { ...silent, line: none, fill: "tonexty", fillcolor: transparent(tint, 0.16) }));
  }
  drawn.push(trace(smoothed(column(4), weight), { line: { width: 2, color: tint, dash: line.dash } }));
  const found = typeof line.is_low_better === "boolean" && best(line.points, line.is_low_better);
  if (found) drawn.push(bestTrace(found, at, tint, chart.is_of_one_run));
  return drawn;
}

function bestTrace([step, value], at, tint, is_named) {
  return {
    x: [at(step)], y: [value], name: "best", mode: is_named ? "markers+text" : "markers", text: [`best ${number(value)}`], textposition: "top left", textfont: { color: tint, size: 11 },
    marker: { symbol: "star", size: 11, color: tint, line: { width: 1, color: colour("card") } }, hovertemplate: `${number(value)} at step ${step}<extra>best</extra>`, cliponaxis: false,
  };
}

function layoutOf(place, chart, axis, is_log) {
  const marks = (chart.marks ?? []).flatMap((mark) => {
    const line = chart.lines.find((one) => one.curves === (mark.curves ?? one.curves));
    return line ? [{ x: axis.at(line)(line.curves ? mark.step : mark.time_s), label: plain(mark.label) }] : [];
  });
  return {
    xaxis: { title: { text: axis.title }, type: axis.kind === "clock" ? "date" : "linear", uirevision: axis.kind, dtick: axis.kind === "step" && stepsShown(place, chart) < WHOLE_TICKS ? 1 : undefined },
    yaxis: { type: is_log ? "log" : "linear", rangemode: chart.from_zero ? "tozero" : "normal", ticksuffix: chart.unit ?? "", uirevision: String(is_log), ...(chart.unit === "B/s" && { tickformat: "~s" }) },
    shapes: marks.map(({ x }) => ({ type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", line: { color: colour("bad"), width: 1, dash: "dot" } })),
    annotations: marks.map(({ x, label }) => ({ x, y: 1, yref: "paper", yanchor: "bottom", text: "▼", showarrow: false, font: { color: colour("bad"), size: 11 }, hovertext: label, captureevents: true })),
    margin: { l: 46, r: 12, t: marks.length ? 18 : 8, b: 30 },
  };
}

function stepsShown(place, chart) {
  const range = zoomedTo(place);
  const steps = chart.lines.flatMap((line) => line.points.map((point) => point[1]));
  const [low, high] = range ?? [Math.min(...steps), Math.max(...steps)];
  return high - low;
}
