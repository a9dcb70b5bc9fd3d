// Curves by the chart library, in the page's colours; the library is loaded when the first is drawn.

import { h } from "./dom.js";
import { number } from "./words.js";

const SPREAD = 20;
let loading = null;

export function loadCharts() {
  loading ??= new Promise((loaded, failed) => {
    const script = h("script", { src: "/static/charts.js" });
    script.addEventListener("load", () => loaded(window.Plotly));
    script.addEventListener("error", () => { loading = null; failed(new Error("the chart library could not be loaded")); });
    document.head.append(script);
  });
  return loading;
}

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export const palette = () => [1, 2, 3, 4, 5, 6, 7, 8].map((place) => colour(`series-${place}`));

function transparent(hex, share) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return `rgba(${r},${g},${b},${share})`;
}

function layoutOf(extra) {
  const title = (words) => ({ text: words?.text ?? "", font: { color: colour("faint"), size: 11 }, standoff: 6 });
  const axis = {
    gridcolor: colour("grid"), zerolinecolor: colour("grid"), linecolor: colour("grid"),
    tickfont: { color: colour("faint"), size: 11 }, automargin: true, fixedrange: false,
  };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, color: colour("text"), size: 12 },
    margin: { l: 46, r: 12, t: extra?.showlegend ? 40 : 6, b: 30 }, hovermode: "x unified", showlegend: false,
    hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("text"), size: 12 } },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { color: colour("text"), size: 11 } },
    uirevision: "kept", // what somebody has zoomed to stays when data is added
    ...extra,
    xaxis: { ...axis, ...extra?.xaxis, title: title(extra?.xaxis?.title) },
    yaxis: { ...axis, ...extra?.yaxis, title: title(extra?.yaxis?.title) },
  };
}

const CONFIG = { displayModeBar: false, displaylogo: false, responsive: true, scrollZoom: false, doubleClick: "reset" };

export async function draw(place, traces, extra) {
  const charts = await loadCharts();
  if (!place.isConnected) return;
  place.redraw = () => draw(place, typeof traces === "function" ? traces : () => traces, extra);
  const drawn = typeof traces === "function" ? traces() : traces;
  await charts.react(place, drawn, layoutOf(typeof extra === "function" ? extra() : extra), CONFIG);
}

// The places of a page that has gone.
export function forget(root) {
  for (const place of root.querySelectorAll(".js-plotly-plot")) window.Plotly?.purge(place);
}

// Without what rounding leaves in means, or a figure that never changes would be drawn as noise.
const exact = (value) => (typeof value === "number" ? Number(value.toPrecision(9)) : value);

// A line has a gap where nothing was reported for several times as long as usual.  A point stands for
// one report or for many, so what is usual is the distance of reports, not that of points.
const USUAL_TIMES = 4;
export function withGaps(points) {
  const apart = points.slice(1).map((point, place) => (point[1] - points[place][1]) / point[2]).sort((a, b) => a - b);
  const most = USUAL_TIMES * Math.max(1, apart[Math.floor(apart.length / 2)] ?? 1);
  return points.flatMap((point, place) => (place && point[0] - points[place - 1][1] > most
    ? [[points[place - 1][1] + 1, points[place - 1][1] + 1, 0, null, null, null], point] : [point]));
}

// A series of the metrics store as traces: the mean, and between least and greatest a band.
export function curve(series, name, tint, at = (point) => point[1], factor = 1) {
  const known = series.points.filter((point) => point[4] !== null).map((point) => [...point.slice(0, 3), ...point.slice(3).map(exact)]);
  const points = withGaps(known);
  const scaled = (value) => (value === null ? null : factor * value);
  const x = points.map(at);
  const traces = [];
  if (points.some((point) => point[3] !== point[5])) {
    const side = (place, more) => ({
      x, y: points.map((point) => scaled(point[place])), mode: "lines", line: { width: 0, color: tint },
      hoverinfo: "skip", showlegend: false, ...more,
    });
    traces.push(side(3), side(5, { fill: "tonexty", fillcolor: transparent(tint, 0.16) }));
  }
  traces.push({
    x, y: points.map((point) => scaled(point[4])), name, mode: points.length < 3 ? "lines+markers" : "lines",
    line: { width: 2, color: tint }, marker: { size: 6 }, hovertemplate: `%{y:.5g}<extra>${plain(name)}</extra>`,
  });
  return traces;
}

// The chart library reads some markup in names; these are none.
export function plain(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

// What is spread over magnitudes, as a loss that falls fast, is drawn on a logarithmic axis.
export function spread(series) {
  const known = series?.points.map((point) => point[4]).filter((value) => value !== null) ?? [];
  const least = Math.min(...known);
  return known.length > 2 && least > 0 && Math.max(...known) > SPREAD * least;
}

export const seconds = (point) => new Date(point[1] * 1000);

export function newest(series) {
  const known = series?.points.filter((point) => point[4] !== null) ?? [];
  return known.length ? known[known.length - 1][4] : null;
}

export function told(series, name) {
  const known = series?.points.filter((point) => point[4] !== null) ?? [];
  if (!known.length) return `${name}: nothing yet`;
  const [first, last] = [known[0], known[known.length - 1]];
  return `${name}: ${number(first[4])} at ${first[0]}, ${number(last[4])} at ${last[1]}`;
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const place of document.querySelectorAll(".js-plotly-plot")) place.redraw?.();
});
