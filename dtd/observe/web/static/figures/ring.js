// The ring: members in order of rank, the link of each to the next, and where the ring broke last.

import { h, s } from "../dom.js";
import { tone } from "../parts.js";
import { bandwidth, bytes, seconds, span } from "../words.js";

const MOST_DRAWN = 32;
const WITH_LINKS = 8; // so many links have room for their figures

// Sizes by the number of members: names move outside, and circles shrink.
function shapeOf(count) {
  if (count <= 10) return { width: 520, height: 340, radius: 112, node: 21, outside: false };
  return count <= 16 ? { width: 700, height: 440, radius: 160, node: 17, outside: true } : { width: 820, height: 620, radius: 225, node: 14, outside: true };
}

function place(rank, count, shape, radius = shape.radius) {
  const angle = (rank / count) * 2 * Math.PI - Math.PI / 2;
  return { x: shape.width / 2 + radius * 1.32 * Math.cos(angle), y: shape.height / 2 + radius * Math.sin(angle), angle };
}

// The curve from one member to the next, cut where their circles begin.
function between(rank, count, shape) {
  const [from, to] = [place(rank, count, shape), place((rank + 1) % count, count, shape)];
  const middle = { x: (from.x + to.x) / 2 - shape.width / 2, y: (from.y + to.y) / 2 - shape.height / 2 };
  const far = Math.hypot(middle.x, middle.y) || 1;
  const bend = count === 2 ? 46 : count <= 10 ? 24 : 8;
  const side = count === 2 ? { x: rank ? -1 : 1, y: 0 } : { x: middle.x / far, y: middle.y / far };
  const control = { x: (from.x + to.x) / 2 + side.x * bend, y: (from.y + to.y) / 2 + side.y * bend };
  const cut = (at, toward, gap) => {
    const length = Math.hypot(toward.x - at.x, toward.y - at.y) || 1;
    return { x: at.x + ((toward.x - at.x) * gap) / length, y: at.y + ((toward.y - at.y) * gap) / length };
  };
  return { begin: cut(from, control, shape.node + 5), end: cut(to, control, shape.node + 11), control, side };
}

function arrow(end, control, cls) {
  const angle = Math.atan2(end.y - control.y, end.x - control.x);
  const at = (turn, length) => `${end.x + length * Math.cos(angle + turn)},${end.y + length * Math.sin(angle + turn)}`;
  return s("polygon", { class: cls, points: `${at(0, 7)} ${at(2.5, 8)} ${at(-2.5, 8)}` });
}

// What has travelled, and what it was before it was coded.
const sent = (link) => (link?.plain_bytes > link?.sent_bytes ? `${bytes(link.sent_bytes)} for ${bytes(link.plain_bytes)}` : "");
const facts = (link) => [link?.rtt_s > 0 ? span(link.rtt_s) : "", link?.bytes_per_s > 0 ? bandwidth(link.bytes_per_s) : "", sent(link)].filter(Boolean);
const short = (name) => (name.length > 16 ? `${name.slice(0, 15)}…` : name);

function linkOf(rank, members, links, shape, lost) {
  const count = members.length;
  const rates = members.map((one) => links.get(one.name)?.bytes_per_s ?? 0);
  const [most, least] = [Math.max(...rates), Math.min(...rates.filter((one) => one > 0))];
  const [one, next] = [members[rank], members[(rank + 1) % count]];
  const link = links.get(one.name);
  const { begin, end, control, side } = between(rank, count, shape);
  const cls = lost.has(one.name) || lost.has(next.name) ? " cut" : most > 1.25 * least && link?.bytes_per_s === least ? " slowest" : "";
  const label = count <= WITH_LINKS || cls === " slowest" ? facts(link).join(" · ") : "";
  const anchor = Math.abs(side.x) < 0.35 ? "middle" : (side.x > 0) === (count <= WITH_LINKS) ? "start" : "end";
  const out = count <= WITH_LINKS ? 1 : -3; // with names outside, the slowest link's figures are inside
  return [
    s("path", { class: `link${cls}`, d: `M${begin.x},${begin.y} Q${control.x},${control.y} ${end.x},${end.y}`, "stroke-width": 2 + (most > 0 ? 4 * ((link?.bytes_per_s ?? 0) / most) : 0) },
      s("title", {}, `${one.name} → ${next.name}: ${facts(link).join(", ") || "no figures yet"}`)),
    arrow(end, control, `tip${cls}`),
    label && s("text", { class: "fact", x: control.x + side.x * 8 * out, y: control.y + side.y * 14 * out + 4, "text-anchor": anchor }, label),
  ];
}

function nodeOf(one, rank, count, shape, lost) {
  const at = place(rank, count, shape);
  const gone = lost.has(one.name);
  const name = place(rank, count, shape, shape.radius + (shape.outside ? shape.node + 6 : -shape.node - 14));
  const steep = Math.abs(Math.cos(at.angle)) < (shape.outside ? 0.08 : 0.3);
  return [
    s("circle", { class: `node ${gone ? "lost" : tone(one.state)}`, cx: at.x, cy: at.y, r: shape.node }, s("title", {}, `rank ${rank}: ${one.name}, ${gone ? "lost" : one.state}`)),
    s("text", { class: "rank", x: at.x, y: at.y, "text-anchor": "middle" }, gone ? "✕" : rank),
    s("text", { class: "fact name", x: name.x, y: name.y + (steep && shape.outside && Math.sin(at.angle) < 0 ? 0 : 4), "text-anchor": steep ? "middle" : (Math.cos(at.angle) > 0) === shape.outside ? "start" : "end" }, short(one.name)),
  ];
}

// `broken`: { workers, members, elapsed_s, over } while an incident is shown, members being those before it.
export function ring(status, figures, broken = null) {
  const breaks = broken !== null && !broken.over;
  const present = membersOf(status);
  // A job may end as soon as it has recovered: then those that were left show it.
  const members = breaks ? broken.members : present.length || !broken ? present : broken.members.filter((one) => !broken.workers.includes(one.name));
  if (!members.length) return h("p", { class: "empty" }, "Not training.");
  const links = new Map((figures?.links ?? []).map((one) => [one.from, one]));
  if (members.length > MOST_DRAWN) return linkTable(members, links);
  const lost = new Set(breaks ? broken.workers : []);
  const shape = shapeOf(members.length);
  const told = members.map((one, rank) => {
    const link = links.get(one.name);
    return `rank ${rank} ${one.name}, ${lost.has(one.name) ? "lost" : one.state}${link ? `, to ${link.to}: ${facts(link).join(", ")}` : ""}`;
  }).join("; ");
  const middle = { x: shape.width / 2, "text-anchor": "middle" };
  return s("svg", { class: `ring${members.length > WITH_LINKS ? " crowded" : ""}${shape.outside ? " many" : ""}${breaks ? " breaks" : broken ? " healed" : ""}`, viewBox: `0 0 ${shape.width} ${shape.height}`, role: "img", "aria-label": `The ring: ${told}` },
    members.length > 1 && members.map((_, rank) => linkOf(rank, members, links, shape, lost)),
    members.map((one, rank) => nodeOf(one, rank, members.length, shape, lost)),
    broken && [s("text", { class: "stopwatch", ...middle, y: shape.height / 2 + 4 }, seconds(broken.elapsed_s)),
      s("text", { class: "fact", ...middle, y: shape.height / 2 + 22 }, breaks ? "recovering" : "recovered")]);
}

export const membersOf = (status) => (status?.workers ?? []).filter((one) => one.rank !== null).sort((a, b) => a.rank - b.rank);

function linkTable(members, links) {
  return h("div", { class: "scroll long", tabindex: "0", role: "region", "aria-label": "Links of the ring" }, h("table", {},
    h("thead", {}, h("tr", {}, ["Rank", "From", "To", "Round trip", "Rate", "Coded"].map((one) => h("th", { scope: "col" }, one)))),
    h("tbody", {}, members.map((one, rank) => {
      const link = links.get(one.name);
      return h("tr", {}, h("td", { class: "num" }, rank), h("td", {}, one.name), h("td", {}, link?.to ?? ""), h("td", { class: "num" }, span(link?.rtt_s)), h("td", { class: "num" }, bandwidth(link?.bytes_per_s ?? 0)), h("td", { class: "num" }, sent(link)));
    }))));
}
