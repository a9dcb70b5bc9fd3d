// All checkpoints of all jobs, and which workers hold them.

import { get } from "../api.js";
import { h, render } from "../dom.js";
import { checkpointTable } from "./job.js";
import { failed } from "../parts.js";
import { counted } from "../words.js";

const EVERY_MS = 5000;

export function openCheckpoints({ main }) {
  const closing = new AbortController();
  let [found, error] = [null, null];
  const timer = setInterval(look, EVERY_MS);

  async function look() {
    if (document.hidden) return;
    try { found = (await get("checkpoints", {}, closing.signal)).checkpoints; error = null; } catch (said) {
      if (said.name === "AbortError") return;
      error = said;
    }
    show();
  }

  function show() {
    render(main,
      h("div", { class: "head" }, h("h1", {}, "Checkpoints"), found && h("span", { class: "soft" }, counted(found.length, "copy").replace("copys", "copies"))),
      error && failed(error),
      h("section", { class: "card", "aria-label": "Checkpoints" }, found ? checkpointTable(found, true) : h("p", { class: "empty" }, "…"),
        found?.length > 0 && h("p", { class: "small faint", css: { "margin-top": "10px" } }, "Fetch one with ", h("code", {}, "dtdctl fetch JOB@STEP"), ".")));
  }

  show();
  look();
  return { title: "Checkpoints", hear() {}, close() { clearInterval(timer); closing.abort(); } };
}
