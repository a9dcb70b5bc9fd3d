// Asks the coordinator, and hears its live data.
//
// The key is kept in this page's own storage, which belongs to this port alone; the browser shows a
// cookie besides.  Each is of no use without the other.

const KEY = "dtd-key";
const HEADER = "X-Dtd-Key";

export class Refused extends Error {
  constructor(status, told) {
    super(told.error ?? `the coordinator answered ${status}`);
    this.status = status;
    this.remedy = told.remedy ?? "";
  }
}

const key = () => localStorage.getItem(KEY) ?? "";
export const hasKey = () => key() !== "";
let loggedOut = () => {};
export const onLoggedOut = (told) => { loggedOut = told; };

async function answered(response) {
  if (response.ok) return response.json();
  let told = {};
  try { told = await response.json(); } catch { /* no JSON: the status says it */ }
  if (response.status === 401 && key()) { localStorage.removeItem(KEY); loggedOut(); }
  throw new Refused(response.status, told);
}

export async function get(path, query = {}, signal = undefined) {
  const given = Object.entries(query).filter(([, one]) => one !== "" && one !== undefined && one !== null);
  const text = new URLSearchParams(given).toString();
  return answered(await fetch(`/api/${path}${text ? `?${text}` : ""}`,
    { headers: { [HEADER]: key() }, signal }));
}

export async function post(path, given) {
  return answered(await fetch(`/api/${path}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", [HEADER]: key() },
    body: JSON.stringify(given),
  }));
}

// An answer as a file that the browser keeps; it is never opened within this page.
export async function save(path, name) {
  const response = await fetch(`/api/${path}`, { headers: { [HEADER]: key() } });
  if (!response.ok) await answered(response);
  const url = URL.createObjectURL(await response.blob());
  const link = document.createElement("a");
  Object.assign(link, { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

export async function logIn(word) {
  const made = await post("login", { word });
  localStorage.setItem(KEY, made.key);
  return made;
}

export async function logOut() {
  try { await post("logout", {}); } catch { /* it has ended already */ }
  localStorage.removeItem(KEY);
}

// --- live data: server-sent events, read by hand since an EventSource sends no header ----------

const PAUSES_MS = [500, 1000, 2000, 5000, 10000];
const SILENT_MS = 40000;

export class Live {
  constructor(heard, told) {
    this.heard = heard;   // (topic, value)
    this.told = told;     // ("live" | "broken")
    this.stopped = false;
    this.tries = 0;
    this.run();
  }

  stop() {
    this.stopped = true;
    this.abort?.abort();
  }

  async run() {
    while (!this.stopped) {
      try { await this.listen(); } catch (error) { if (error instanceof Refused && error.status === 401) return; }
      if (this.stopped) return;
      this.told("broken");
      const pause = PAUSES_MS[Math.min(this.tries, PAUSES_MS.length - 1)];
      this.tries += 1;
      await new Promise((go) => { setTimeout(go, pause); });
    }
  }

  async listen() {
    this.abort = new AbortController();
    const response = await fetch("/api/live", { headers: { [HEADER]: key() }, signal: this.abort.signal });
    if (!response.ok) await answered(response);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const silent = setTimeout(() => this.abort.abort(), SILENT_MS);
      const { done, value } = await reader.read();
      clearTimeout(silent);
      if (done) return;
      text += value;
      let end;
      while ((end = text.indexOf("\n\n")) >= 0) {
        this.block(text.slice(0, end));
        text = text.slice(end + 2);
      }
    }
  }

  block(text) {
    const topic = /^event: (.*)$/m.exec(text)?.[1];
    const data = /^data: (.*)$/m.exec(text)?.[1];
    if (!topic || data === undefined) return;
    if (topic === "ended") { localStorage.removeItem(KEY); this.stop(); loggedOut(); return; }
    this.tries = 0;
    this.told("live");
    this.heard(topic, JSON.parse(data));
  }
}
