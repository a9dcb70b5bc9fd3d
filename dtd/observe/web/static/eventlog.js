// The coordinator's events as far as this page has read them: one copy for all pages and charts.

import { get } from "./api.js";

const PAGE = 500;
const MOST = 20 * PAGE;
const FULL = 100; // a page of so many may have a successor
const known = { all: [], newest: 0, reading: null };

export const events = () => known.all;
export const firstEvent = () => known.all[0]?.seq ?? 1;
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

// The page of events before the first that is known; false if there is none, or no room.
export async function readOlder() {
  const first = firstEvent();
  if (first <= 1 || known.all.length + PAGE > MOST) return false;
  const older = (await get("events", { after: Math.max(1, first - PAGE - 1) })).events.filter((one) => one.seq < first);
  if (first === firstEvent()) known.all = [...older, ...known.all];
  return older.length > 0;
}

// All events since a job began, as far as they are kept.
export async function readEventsOf(job) {
  await readEvents();
  while (!known.all.some((one) => one.job === job && one.kind === "job_started")) if (!await readOlder()) return;
}
