// All pages, in the order of the menu.

import { openOverview } from "./overview.js";
import { openJob } from "./job.js";
import { openRuns } from "./runs.js";
import { openCompare } from "./compare.js";
import { openEvents } from "./events.js";
import { openCheckpoints } from "./checkpoints.js";
import { openLogs } from "./logs.js";
import { openModels } from "./models.js";
import { openSweeps } from "./sweeps.js";

export const PAGES = [
  { path: "", menu: "Overview", open: openOverview },
  { path: "runs", menu: "Runs", also: ["job", "compare"], open: openRuns },
  { path: "job", open: openJob },
  { path: "compare", open: openCompare },
  { path: "sweeps", menu: "Sweeps", open: openSweeps },
  { path: "events", menu: "Events", open: openEvents },
  { path: "checkpoints", menu: "Checkpoints", open: openCheckpoints },
  { path: "models", menu: "Models", open: openModels },
  { path: "logs", menu: "Logs", open: openLogs },
];

export const pageOf = (path) => PAGES.find((one) => one.path === path) ?? PAGES[0];
