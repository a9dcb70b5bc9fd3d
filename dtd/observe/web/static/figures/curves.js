// The curves of one job, of which only what is new is fetched, and the steps' epochs and times.

import { known, thinned } from "./points.js";

const POINTS = 300;

export class Curves {
  // `ask` fetches metrics for a query.
  constructor(ask) {
    this.ask = ask;
    this.series = [];
    this.restart();
  }

  // The next look fetches everything: steps that were lost are trained again, with other figures.
  restart() {
    [this.steps, this.gained] = [0, 0];
  }

  async look() {
    const whole = !this.steps;
    // From the newest step on, not after it: workers report between two steps as well.  As many points
    // as a chart has room for beside those of all earlier steps.
    const found = await this.ask(whole ? { points: POINTS } : { from: this.steps, points: Math.max(1, Math.ceil((POINTS * this.gained) / this.steps)) });
    if (found.steps < this.steps) {
      this.restart();
      return this.look();
    }
    this.series = extended(whole ? [] : this.series, found.series);
    this.gained = found.steps - this.steps;
    this.steps = found.steps;
    return found;
  }

  named(name) {
    return this.series.find((one) => one.name === name);
  }

  all(name) {
    return this.series.filter((one) => one.name === name && one.points.some((point) => point[4] !== null));
  }

  // Steps of an epoch, null before the second one: each has as many.
  get steps_per_epoch() {
    const points = known(this.named("epoch"));
    const first = points.findIndex((point) => point[5] === points.at(-1)[5]);
    if (first < 0 || points[first][5] === 0) return null;
    const [begin, end, , least, mean, greatest] = points[first];
    const share = greatest > least ? (mean - least) / (greatest - least) : 1;
    return (end - share * (end - begin + 1)) / greatest;
  }

  // Seconds from the job's first step to another one.
  get seconds_of() {
    const points = (this.named("unix_s")?.points ?? []).filter((point) => point[4] !== null);
    const began = points[0]?.[3];
    return between(points.map((point) => [point[1], point[5] - began]));
  }
}

// A function through knots [x, y], straight between them and level beyond them.
function between(knots) {
  return (x) => {
    const after = knots.findIndex((knot) => knot[0] >= x);
    if (after <= 0) return (after ? knots.at(-1) : knots[0])?.[1] ?? null;
    const [[from, low], [to, high]] = [knots[after - 1], knots[after]];
    return low + ((high - low) * (x - from)) / (to - from);
  };
}

// Series with the points that have come since, by name and source.
export function extended(series, more) {
  const key = (one) => `${one.name} ${one.source} ${one.to}`;
  const found = new Map(series.map((one) => [key(one), one]));
  for (const one of more) {
    const before = found.get(key(one))?.points ?? [];
    const last = before.at(-1)?.[1] ?? -1;
    found.set(key(one), { ...one, points: thinned([...before, ...one.points.filter((point) => point[1] > last)], 2 * POINTS) });
  }
  return [...found.values()];
}
