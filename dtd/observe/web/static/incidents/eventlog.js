// The coordinator's events as far as this page has read them: one copy for all pages and charts.

import { get } from "../api.js";

const PAGE = 500;
const MOST = 20 * PAGE;
const FULL = 100; // a page of so many may have a successor
const known = { all: [], newest: 0, complete: false, reading: null };

export const events = () => known.all;
const firstEvent = () => known.all[0]?.seq ?? 1;
export const newestEvent = () => known.newest;

async function readAll() {
  let found;
  do {
    found = await get("events", { after: known.newest || "" });
    known.all = [...known.all, ...found.events].slice(-MOST);
    known.newest = Math.max(known.newest, found.next);
  } while (found.events.length >= FULL && known.all.length > found.events.length);
}

// Whatever is new; callers at the same time share one request.  One that is under way may have been
// answered before the newest event.
export async function readEvents() {
  if (known.reading) await known.reading;
  known.reading ??= readAll().finally(() => { known.reading = null; });
  return known.reading;
}

// Whether there may be events before the first that is known, and room for them.  The cursor 0 asks for the newest page,
// so event 1 is never asked for.
export const hasOlder = () => firstEvent() > 2 && !known.complete && known.all.length + PAGE <= MOST;

// The events before the first that is known; false if there are none.  A page may be cut short by its size.
export async function readOlder() {
  if (!hasOlder()) return false;
  const first = firstEvent();
  const older = [];
  let after = Math.max(1, first - PAGE - 1);
  while (after < first - 1) {
    const found = (await get("events", { after })).events;
    older.push(...found.filter((one) => one.seq < first));
    after = found.at(-1)?.seq ?? first;
  }
  if (first !== firstEvent()) return true;
  known.complete = older.length === 0;
  known.all = [...older, ...known.all];
  return older.length > 0;
}

// All events since a job began, as far as they are kept.
export async function readEventsOf(job) {
  await readEvents();
  while (!known.all.some((one) => one.job === job && one.kind === "job_started")) if (!await readOlder()) return;
}
