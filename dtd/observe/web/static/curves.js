// The curves of one job, of which only what is new is fetched.

// Now and then all of it, so that a curve keeps as many points as it has room for.
const WHOLE_EVERY = 30;

export class Curves {
  // `ask` fetches metrics for a query.
  constructor(ask) {
    this.ask = ask;
    this.series = [];
    this.restart();
  }

  // The next look fetches everything: steps that were lost are trained again, with other figures.
  restart() {
    [this.steps, this.left] = [0, 0];
  }

  async look() {
    const whole = !this.left || !this.steps;
    // From the newest step on, not after it: workers report between two steps as well.
    const found = await this.ask(whole ? {} : { from: this.steps });
    if (found.steps < this.steps) {
      this.restart();
      return this.look();
    }
    this.series = extended(whole ? [] : this.series, found.series);
    this.left = whole ? WHOLE_EVERY - 1 : this.left - 1;
    this.steps = found.steps;
    return found;
  }

  named(name) {
    return this.series.find((one) => one.name === name);
  }
}

// Series with the points that have come since, by name and source.
export function extended(known, more) {
  const found = new Map(known.map((one) => [`${one.name} ${one.source} ${one.to}`, one]));
  for (const one of more) {
    const key = `${one.name} ${one.source} ${one.to}`;
    const before = found.get(key)?.points ?? [];
    const last = before.length ? before[before.length - 1][1] : -1;
    found.set(key, { ...one, points: [...before, ...one.points.filter((point) => point[1] > last)] });
  }
  return [...found.values()];
}
