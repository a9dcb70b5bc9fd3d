// Plays a fault in the ring: it breaks, a stopwatch runs, it heals.  A recovery often takes less time
// than lies between two looks at the status, so the break stays for a while.

const TICK_MS = 100;
const BROKEN_MS = 1500;
const HEALED_MS = 4000;

export class BreakShown {
  // `changed` is called while the stopwatch runs.
  constructor(changed) {
    this.changed = changed;
    this.members = []; // of the ring that was whole last
    this.seen = null;  // the newest fault, which is played only if it happens while the page is open
    this.fault = null;
  }

  note(members) {
    if (this.fault === null) this.members = members;
  }

  look(faults) {
    const newest = faults[faults.length - 1];
    const news = this.seen !== null && newest !== undefined && newest.seq > this.seen;
    this.seen = Math.max(this.seen ?? 0, newest?.seq ?? 0);
    if (this.fault !== null) {
      const now = faults.find((one) => one.seq === this.fault.seq);
      if (now) this.fault = now;
      else this.close(); // the job has ended
    }
    if (!news || !this.members.length) return;
    this.close();
    Object.assign(this, { fault: newest, began_ms: performance.now(), healed_ms: null });
    this.timer = setInterval(() => this.tick(), TICK_MS);
  }

  tick() {
    const [now, over] = [performance.now(), this.fault.recovered_s !== null];
    if (over && this.healed_ms === null && now - this.began_ms >= BROKEN_MS) this.healed_ms = now;
    if (this.healed_ms !== null && now - this.healed_ms >= HEALED_MS) this.close();
    this.changed();
  }

  // What the ring draws; null if it is whole.
  shown() {
    if (this.fault === null) return null;
    const elapsed_s = this.fault.recovered_s ?? (performance.now() - this.began_ms) / 1000;
    return { workers: this.fault.workers, members: this.members, elapsed_s, over: this.healed_ms !== null };
  }

  close() {
    clearInterval(this.timer);
    this.fault = null;
  }
}
