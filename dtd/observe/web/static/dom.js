// Elements from data.  Text becomes text nodes and nothing else, so that what a peer said cannot be
// markup; links lead to parts of this page only.

const SVG = "http://www.w3.org/2000/svg";
const HANDLERS = ["onclick", "onchange", "oninput", "onsubmit", "onkeydown", "onfocus", "onblur", "onpointerdown", "onpointerenter", "onpointerleave"];

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (HANDLERS.includes(name)) made[name] = value;
    else if (name === "css") {
      for (const [key, one] of Object.entries(value)) made.style.setProperty(key, one);
    } else if (name === "href") made.setAttribute("href", String(value).startsWith("#") ? value : "#/");
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(9)) {
    if (child === null || child === undefined || child === false) continue;
    made.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return made;
}

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

// Make `old` look like `made` and keep what is the same, so that focus, selection and scrolling stay.
// An element with data-keep is filled by somebody else.
export function morph(old, made) {
  if (old.nodeType !== made.nodeType || old.nodeName !== made.nodeName
      || (old.dataset?.key ?? "") !== (made.dataset?.key ?? "")) {
    old.replaceWith(made);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== made.data) old.data = made.data;
    return;
  }
  if (old.hasAttribute("data-keep") && made.hasAttribute("data-keep")) return;
  for (const { name } of [...old.attributes]) {
    const own = (name === "open" && old.nodeName === "DETAILS") || name === "style";
    if (!made.hasAttribute(name) && !own) old.removeAttribute(name);
  }
  for (const { name, value } of made.attributes) {
    if (name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (old.style && old.style.cssText !== made.style.cssText) old.style.cssText = made.style.cssText;
  for (const handler of HANDLERS) if (old[handler] !== made[handler]) old[handler] = made[handler];
  // What is chosen or ticked is a property, which attributes no longer change once it was used.
  const chosen = made.nodeName === "SELECT" ? made.value : null;
  if (made.type === "checkbox") old.checked = made.checked;
  morphChildren(old, made);
  if (chosen !== null) old.value = chosen;
}

function morphChildren(old, made) {
  const wanted = [...made.childNodes];
  const keyed = new Map();
  for (const one of old.childNodes) if (one.dataset?.key) keyed.set(one.dataset.key, one);
  wanted.forEach((one, place) => {
    let here = old.childNodes[place];
    const same = one.dataset?.key && keyed.get(one.dataset.key);
    if (same && same !== here) {
      old.insertBefore(same, here ?? null);
      here = same;
    }
    if (here) morph(here, one);
    else old.append(one);
  });
  while (old.childNodes.length > wanted.length) old.lastChild.remove();
}

export function render(place, ...children) {
  const made = place.cloneNode(false);
  fill(made, {}, children);
  morphChildren(place, made);
}

let spoken = "";
export function announce(text) {
  if (text === spoken) return;
  spoken = text;
  document.getElementById("announce").textContent = text;
}
