// The frame: who is logged in, which page is shown, and what all pages know.

import { Live, get, hasKey, logIn, logOut, onLoggedOut } from "./api.js";
import { announce, h, render } from "./dom.js";
import { forget } from "./figures/plots.js";
import { confirmed } from "./parts.js";
import { PAGES, pageOf } from "./pages/pages.js";
import { span } from "./words.js";

const app = document.getElementById("app");
const world = { me: null, status: null, figures: null, newest: 0, link: "broken", trouble: "", heard_ms: null };
const STALE_MS = 5000; // several times the interval at which the coordinator sends its status
let live = null;
let page = null;

// --- logging in ---------------------------------------------------------------------------------

function codeInAddress() {
  const found = /^#login=([A-Za-z0-9_-]{20,128})$/.exec(location.hash);
  if (found) history.replaceState(null, "", "#/");
  return found?.[1] ?? "";
}

function showLogin(why = "", remedy = "") {
  stop();
  document.title = "Log in · dtd";
  const word = h("input", { id: "word", type: "password", autocomplete: "off", spellcheck: "false", required: true, "aria-describedby": "word-help" });
  const form = h("form", { class: "card", "aria-labelledby": "login-title", onsubmit: (event) => {
    event.preventDefault();
    enter(word.value.trim());
  } },
    h("div", { class: "brand" }, h("img", { src: "/static/icon.svg", alt: "" }), h("h1", { id: "login-title" }, "dtd")),
    h("div", { class: "field" }, h("label", { for: "word" }, "Code or token"), word),
    h("p", { class: "small soft", id: "word-help" }, "Run ", h("code", {}, "dtdctl web"), " for a link that logs you in, or paste an operator or viewer token."),
    why && h("div", { role: "alert" }, h("p", { class: "error" }, why), remedy && h("p", { class: "small soft" }, remedy)),
    h("div", {}, h("button", { class: "primary", type: "submit" }, "Log in")));
  app.replaceChildren(h("main", { class: "login", id: "main", tabindex: "-1" }, form));
  word.focus();
}

async function enter(word) {
  try {
    await logIn(word);
    await start();
  } catch (error) { showLogin(error.message, error.remedy); }
}

async function start() {
  world.me = await get("me");
  const main = h("main", { id: "main", tabindex: "-1" });
  app.replaceChildren(h("header", { class: "top" }), main, h("footer"));
  live = new Live(heard, (link) => { world.link = link; frame(); if (link === "broken") announce("Connection lost."); });
  route();
}

function stop() {
  live?.stop();
  live = null;
  Object.assign(world, { status: null, figures: null, heard_ms: null }); // nothing is shown that could be old
  stale();
  closePage();
}

async function begin() {
  const code = codeInAddress();
  if (code) {
    try { await logIn(code); } catch (error) {
      if (!hasKey()) { showLogin(error.message, error.remedy); return; }
    }
  }
  if (!hasKey()) { showLogin(); return; }
  try { await start(); } catch (error) { showLogin(error.status === 401 ? "" : error.message, error.remedy); }
}

onLoggedOut(() => showLogin("The session has ended.", "Sessions last twelve hours at most, and end when the credential is revoked or the user loses the role."));

// --- the frame ----------------------------------------------------------------------------------

function frame() {
  const [top, foot] = [app.querySelector("header"), app.querySelector("footer")];
  if (!top || !world.me) return;
  const here = location.hash.split("/")[1]?.split("?")[0] ?? "";
  const links = PAGES.filter((one) => one.menu).map((one) => {
    const current = one.path === here || (one.also ?? []).includes(here);
    return h("li", {}, h("a", { href: `#/${one.path}`, "aria-current": current ? "page" : null }, one.menu));
  });
  const broken = world.link === "broken" || world.trouble;
  render(top, h("div", { class: "top-in" },
    h("a", { class: "brand", href: "#/", "aria-label": "dtd: overview" }, h("img", { src: "/static/icon.svg", alt: "" }), "dtd"),
    h("nav", { "aria-label": "Pages", class: "nav" }, h("ul", { class: "menu" }, links)),
    h("div", { class: "who" },
      h("span", { class: `state ${broken ? "warn" : "good"}`, title: world.trouble || null }, broken ? "reconnecting" : "live"),
      h("span", {}, `${world.me.name} (${world.me.may_act ? "operator" : "viewer"})`),
      h("button", { class: "plain", type: "button", onclick: leave }, "Log out"))));
  stale();
  render(foot, `dtd ${world.me.version} on ${world.me.host}`);
}

// Data that nothing confirms any more is dimmed, under a banner with its age.
function stale() {
  const age_ms = world.heard_ms === null ? 0 : performance.now() - world.heard_ms;
  const main = document.getElementById("main");
  const old = age_ms > STALE_MS;
  main?.classList.toggle("stale", old);
  const banner = document.getElementById("stale");
  if (old && banner.hidden) announce("The coordinator is not responding.");
  banner.hidden = !old;
  if (old) banner.textContent = `The coordinator has not responded for ${span(Math.round(age_ms / 1000))}. This page shows the last data received.`;
}
setInterval(stale, 1000);

async function leave() {
  await logOut();
  showLogin();
}

function heard(topic, value) {
  world.trouble = topic === "trouble" ? value.error : "";
  if (topic === "status") [world.status, world.heard_ms] = [value, performance.now()];
  if (topic === "figures") world.figures = value;
  if (topic === "incidents") world.newest = value.newest;
  frame();
  page?.hear?.(topic);
}

// --- pages --------------------------------------------------------------------------------------

function closePage() {
  page?.close?.();
  const main = document.getElementById("main");
  if (main) forget(main);
  page = null;
}

function route() {
  const main = document.getElementById("main");
  if (!main || !world.me || location.hash.startsWith("#login=")) return;
  closePage();
  const [path, text] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").map(decodeURIComponent);
  const found = pageOf(parts[0]);
  main.replaceChildren();
  frame();
  page = found.open({ main, world, parts: parts.slice(1), query: new URLSearchParams(text ?? ""), confirmed });
  document.title = `${page.title ?? found.menu} · dtd`;
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
}

addEventListener("hashchange", () => {
  const code = codeInAddress();
  if (code) enter(code);
  else route();
});
document.querySelector("[data-skip]").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main")?.focus();
});
begin();
