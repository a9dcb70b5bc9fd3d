// Curves by the chart library, in the page's colours; the library is loaded when the first is drawn.

import { h, render } from "../dom.js";

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

export function transparent(hex, share) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return `rgba(${r},${g},${b},${share})`;
}

// Ticks in plain numbers: no powers, no letters for magnitudes, nothing that rounding leaves.
const PLAIN = ",.10~r";

function layoutOf(extra) {
  const title = (words) => ({ text: words?.text ?? "", font: { color: colour("faint"), size: 11 }, standoff: 6 });
  const axis = (more) => ({
    gridcolor: colour("grid"), zerolinecolor: colour("grid"), linecolor: colour("grid"),
    tickfont: { color: colour("faint"), size: 11 }, automargin: true, fixedrange: false,
    tickformat: more?.type === "date" ? undefined : PLAIN, ...more, title: title(more?.title),
  });
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, color: colour("text"), size: 12 },
    margin: { l: 46, r: 12, t: extra?.showlegend ? 40 : 6, b: 30 }, hovermode: "x unified", showlegend: false,
    hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("text"), size: 12 } },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { color: colour("text"), size: 11 } },
    uirevision: "kept", // what somebody has zoomed to stays when data is added
    ...extra,
    xaxis: axis(extra?.xaxis),
    yaxis: axis(extra?.yaxis),
  };
}

const CONFIG = { displayModeBar: false, displaylogo: false, responsive: true, scrollZoom: false, doubleClick: "autosize" };
const AXES = ["xaxis", "yaxis"];

// What somebody has zoomed to, by dragging, stays until the button or a double click shows all again.
const isZoomed = (place) => AXES.some((axis) => place.layout?.[axis]?.autorange === false);
export const zoomedTo = (place) => (isZoomed(place) ? place.layout.xaxis.range : null);

function showTools(place, tools) {
  const all = h("button", { type: "button", class: "plain", onclick: () => window.Plotly.relayout(place, Object.fromEntries(AXES.map((axis) => [`${axis}.autorange`, true]))) }, "Reset zoom");
  render(place.previousElementSibling, tools?.(), isZoomed(place) && all);
}

// The functions are called again when colours, zoom or choices change; without a place nothing is drawn.
export async function draw(place, traces, extra, tools = undefined) {
  const charts = place && await loadCharts();
  if (!place?.isConnected) return;
  const is_new = !place.redraw;
  place.redraw = () => draw(place, traces, extra, tools);
  await charts.react(place, traces(), layoutOf(typeof extra === "function" ? extra() : extra), CONFIG);
  if (is_new) place.on("plotly_relayout", () => place.redraw());
  showTools(place, tools);
}

export function redrawAll() {
  for (const place of document.querySelectorAll(".js-plotly-plot")) place.redraw?.();
}

// The places of a page that has gone.
export function forget(root) {
  for (const place of root.querySelectorAll(".js-plotly-plot")) {
    window.Plotly?.purge(place);
    place.redraw = null;
  }
}

// The chart library reads some markup in names; these are none.
export function plain(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
