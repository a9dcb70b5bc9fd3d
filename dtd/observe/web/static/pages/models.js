// The registry: versions of models, where they come from, who holds them, and their aliases.

import { get } from "../api.js";
import { h, render } from "../dom.js";
import { empty, failed, jobLink, table } from "../parts.js";
import { bytes, clock, counted, number, whole } from "../words.js";

const EVERY_MS = 4000;

export function openModels({ main, world, confirmed }) {
  const closing = new AbortController();
  const form = { version: "", alias: "" };
  let [found, error] = [null, null];
  const timer = setInterval(look, EVERY_MS);

  async function look() {
    if (document.hidden) return;
    try { found = (await get("models", {}, closing.signal)).models; error = null; } catch (said) {
      if (said.name === "AbortError") return;
      error = said;
    }
    show();
  }

  function setAlias(event) {
    event.preventDefault();
    const chosen = found.find((one) => one.id === (form.version || found[0].id));
    confirmed(`Set the alias “${form.alias}” to version ${chosen.number} of ${chosen.name}?`, `From now on, ${chosen.name}@${form.alias} is this version.`, "Set the alias",
      { what: "alias", model: chosen.name, alias: form.alias, version: chosen.number });
  }

  function show() {
    render(main,
      h("div", { class: "head" }, h("h1", {}, "Models"), found && h("span", { class: "soft" }, counted(found.length, "version"))),
      error && failed(error),
      world.me.may_act && found?.length ? h("form", { class: "card fields", "aria-label": "Set an alias", onsubmit: setAlias },
        h("div", { class: "field" }, h("label", { for: "alias-version" }, "Version"), h("select", { id: "alias-version", onchange: (event) => { form.version = event.target.value; } },
          found.map((one) => h("option", { value: one.id, selected: one.id === form.version }, `${one.name} ${one.number}`)))),
        h("div", { class: "field" }, h("label", { for: "alias" }, "Alias"), h("input", { id: "alias", required: true, placeholder: "production", oninput: (event) => { form.alias = event.target.value; } })),
        h("button", { type: "submit" }, "Set the alias")) : null,
      h("section", { class: "card", "aria-label": "Versions" }, found?.length ? versions(found)
        : found ? empty("No models yet", "A model is a checkpoint with a name and a version, kept when its job is deleted.", "dtdctl models register JOB NAME") : h("p", { class: "empty" }, "…")));
  }

  show();
  look();
  return { title: "Models", hear() {}, close() { clearInterval(timer); closing.abort(); } };
}

function versions(found) {
  const headings = [{ name: "Model" }, { name: "Version", num: true }, { name: "Aliases" }, { name: "State" }, { name: "From" }, { name: "Size", num: true }, { name: "Metrics" }, { name: "Stored on" }, { name: "Registered" }];
  return table("Versions", headings, found.map((one) => h("tr", { "data-key": one.id },
    h("th", { scope: "row" }, one.name),
    h("td", { class: "num" }, whole(one.number)),
    h("td", {}, one.aliases.join(", ") || "–"),
    h("td", {}, h("span", { class: `state ${one.state === "ready" ? "good" : "warn"}` }, one.state)),
    h("td", {}, jobLink(one.record.job), h("span", { class: "faint" }, ` step ${whole(one.record.step)}`)),
    h("td", { class: "num" }, one.files.length ? bytes(one.files.reduce((sum, file) => sum + file.size_bytes, 0)) : "–"),
    h("td", { class: "small" }, Object.entries(one.record.metrics ?? {}).map(([name, value]) => `${name} ${number(value)}`).join(", ") || "–"),
    h("td", {}, `${one.connected.length} of ${one.copies}`, one.holders.length ? `: ${one.holders.map((name) => one.connected.includes(name) ? name : `${name} (not connected)`).join(", ")}` : ""),
    h("td", { class: "num soft" }, clock(one.record.registered_s)))));
}
