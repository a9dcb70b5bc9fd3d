// The ring: members in order of rank, and what each says of its link to the next.

import { h, s } from "./dom.js";
import { tone } from "./parts.js";
import { bandwidth, bytes, span } from "./words.js";

const [WIDTH, HEIGHT, RADIUS, NODE] = [520, 340, 112, 21];
const MOST_DRAWN = 16;

function place(rank, count, radius = RADIUS) {
  const angle = (rank / count) * 2 * Math.PI - Math.PI / 2;
  return { x: WIDTH / 2 + radius * 1.32 * Math.cos(angle), y: HEIGHT / 2 + radius * Math.sin(angle), angle };
}

// The curve from one member to the next, cut where their circles begin.
function between(rank, count) {
  const [from, to] = [place(rank, count), place((rank + 1) % count, count)];
  const middle = { x: (from.x + to.x) / 2 - WIDTH / 2, y: (from.y + to.y) / 2 - HEIGHT / 2 };
  const far = Math.hypot(middle.x, middle.y) || 1;
  const bend = count === 2 ? 46 : 24;
  const side = count === 2 ? { x: rank ? -1 : 1, y: 0 } : { x: middle.x / far, y: middle.y / far };
  const control = { x: (from.x + to.x) / 2 + side.x * bend, y: (from.y + to.y) / 2 + side.y * bend };
  const cut = (at, toward, gap) => {
    const length = Math.hypot(toward.x - at.x, toward.y - at.y) || 1;
    return { x: at.x + ((toward.x - at.x) * gap) / length, y: at.y + ((toward.y - at.y) * gap) / length };
  };
  return { begin: cut(from, control, NODE + 5), end: cut(to, control, NODE + 11), control, to, side };
}

function arrow(end, control, cls) {
  const angle = Math.atan2(end.y - control.y, end.x - control.x);
  const at = (turn, length) => `${end.x + length * Math.cos(angle + turn)},${end.y + length * Math.sin(angle + turn)}`;
  return s("polygon", { class: cls, points: `${at(0, 7)} ${at(2.5, 8)} ${at(-2.5, 8)}` });
}

// What has travelled, and what it was before it was coded.
const sent = (link) => (link?.plain_bytes > link?.sent_bytes ? `${bytes(link.sent_bytes)} for ${bytes(link.plain_bytes)}` : "");
const facts = (link) => [link?.rtt_s > 0 ? span(link.rtt_s) : "", link?.bytes_per_s > 0 ? bandwidth(link.bytes_per_s) : "", sent(link)].filter(Boolean);

function drawn(members, links) {
  const count = members.length;
  const rates = members.map((one) => links.get(one.name)?.bytes_per_s ?? 0);
  const [most, least] = [Math.max(...rates), Math.min(...rates.filter((one) => one > 0))];
  const edges = [], nodes = [];
  members.forEach((one, rank) => {
    const link = links.get(one.name);
    if (count > 1) {
      const { begin, end, control, side } = between(rank, count);
      const slowest = most > 1.25 * least && link?.bytes_per_s === least ? " slowest" : "";
      edges.push(s("path", {
        class: `link${slowest}`, d: `M${begin.x},${begin.y} Q${control.x},${control.y} ${end.x},${end.y}`,
        "stroke-width": 2 + (most > 0 ? 4 * ((link?.bytes_per_s ?? 0) / most) : 0),
      }), arrow(end, control, `tip${slowest}`));
      if (count <= 8 && facts(link).length) {
        const anchor = Math.abs(side.x) < 0.35 ? "middle" : side.x > 0 ? "start" : "end";
        edges.push(s("text", { class: "fact", x: control.x + side.x * 8, y: control.y + side.y * 14 + 4, "text-anchor": anchor }, facts(link).join(" · ")));
      }
    }
    const at = place(rank, count);
    const name = place(rank, count, RADIUS - NODE - 14);
    nodes.push(s("circle", { class: `node ${tone(one.state)}`, cx: at.x, cy: at.y, r: NODE }),
      s("text", { class: "rank", x: at.x, y: at.y + 5, "text-anchor": "middle" }, one.rank));
    if (count <= 10) {
      const anchor = Math.abs(Math.cos(at.angle)) < 0.3 ? "middle" : Math.cos(at.angle) > 0 ? "end" : "start";
      nodes.push(s("text", { class: "fact", x: name.x, y: name.y + 4, "text-anchor": anchor }, one.name.length > 16 ? `${one.name.slice(0, 15)}…` : one.name));
    }
  });
  return [...edges, ...nodes];
}

export function ring(status, figures) {
  const members = (status?.workers ?? []).filter((one) => one.rank !== null).sort((a, b) => a.rank - b.rank);
  if (!members.length) return h("p", { class: "empty" }, "No generation runs.");
  const links = new Map((figures?.links ?? []).map((one) => [one.from, one]));
  const told = members.map((one) => {
    const link = links.get(one.name);
    return `rank ${one.rank} ${one.name}, ${one.state}${link ? `, to ${link.to}: ${facts(link).join(", ")}` : ""}`;
  }).join("; ");
  if (members.length > MOST_DRAWN) return linkTable(members, links);
  return s("svg", { class: "ring", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `The ring: ${told}` }, drawn(members, links));
}

function linkTable(members, links) {
  return h("div", { class: "scroll" }, h("table", {},
    h("thead", {}, h("tr", {}, ["Rank", "From", "To", "Round trip", "Rate", "Coded"].map((one) => h("th", { scope: "col" }, one)))),
    h("tbody", {}, members.map((one) => {
      const link = links.get(one.name);
      return h("tr", {}, h("td", { class: "num" }, one.rank), h("td", {}, one.name), h("td", {}, link?.to ?? ""), h("td", { class: "num" }, span(link?.rtt_s)), h("td", { class: "num" }, bandwidth(link?.bytes_per_s ?? 0)), h("td", { class: "num" }, sent(link)));
    }))));
}
