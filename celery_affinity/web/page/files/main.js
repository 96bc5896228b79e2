// The page: its views, by the part of the address after #, and the news that they show.
import { askAgain, get, listen, onToken } from "./api.js";
import { askForToken } from "./asking.js";
import { counts, learn, newsOf, onChoice } from "./cohorts.js";
import { announce, el, fill, many, numberOf } from "./dom.js";
import { dead } from "./views/dead.js";
import { job } from "./views/job.js";
import { jobs } from "./views/jobs.js";
import { lab } from "./views/lab.js";
import { next } from "./views/next.js";
import { now } from "./views/now.js";
import { rules } from "./views/rules.js";
import { tasks } from "./views/tasks.js";
import { worker } from "./views/worker.js";
import { workers } from "./views/workers.js";

const VIEWS = { "": now, workers, worker, tasks, next, rules, dead, job, jobs, lab };

// Those that no choice of a cohort changes: a job is in one of them, and a trace is of one.
const WHOLE = new Set(["job", "lab", "worker"]);

const main = document.getElementById("view");
const state = document.getElementById("state");
const down = document.getElementById("down");

// Name in the browser's storage of whether single keys are off.
const KEYS = "celery_affinity keys";

// Time, ms, after which the newest news is old.
const OLD_MS = 6000;

// The newest news, and when it came.
const known = { news: null, heard: 0 };
let view = null;

function show() {
  const [, name, ...rest] = location.hash.replace(/^#/, "").split("/");
  const make = VIEWS[name ?? ""] ?? now;
  for (const each of document.querySelectorAll("nav a")) {
    if (each.getAttribute("href") === `#/${name ?? ""}`) {
      each.setAttribute("aria-current", "page");
      each.scrollIntoView({ block: "nearest", inline: "nearest" }); // on a phone, the views are one line that scrolls
    }
    else each.removeAttribute("aria-current");
  }
  view?.gone?.();
  view = make(rest.map(decodeURIComponent).join("/"));
  counts(!WHOLE.has(name));
  document.title = `${view.title} · celery_affinity`;
  fill(main, ...view.parts);
  update();
}

function update() {
  if (known.news) view.update?.(newsOf(known.news));
}

function hear(name, data) {
  if (name === "down") isDown(`The broker does not answer: ${data.why}. The page shows the last known state and resumes by itself.`);
  if (name === "news") {
    isDown(null);
    known.news = data;
    known.heard = Date.now();
    learn(data);
    update();
  }
  tell();
}

function isDown(words, button = null) {
  down.hidden = words === null;
  announce(down, words ?? "", button);
  main.classList.toggle("stale", words !== null);
}

function tell() {
  if (!known.news) return;
  const age = Date.now() - known.heard < OLD_MS ? "up to date" : `last data at ${new Date(known.heard).toLocaleTimeString()}`;
  announce(state, `${many(numberOf(known.news.status.workers), "worker")}, ${age}`);
}

document.getElementById("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = document.getElementById("id");
  const id = field.value.trim();
  if (!id) return;
  field.value = ""; // the next search begins anew
  const place = `#/job/${encodeURIComponent(id)}`;
  if (location.hash === place) main.focus();
  else location.hash = place;
});
const keys = document.getElementById("keys");
keys.checked = localStorage.getItem(KEYS) !== "off";
keys.addEventListener("change", () => localStorage.setItem(KEYS, keys.checked ? "on" : "off"));
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea, dialog");
  if (!keys.checked || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const views = ["#/", "#/workers", "#/next", "#/rules", "#/dead", "#/jobs", "#/lab", "#/tasks"];
  if (event.key === "/") {
    event.preventDefault();
    document.getElementById("id").select();
  } else if (views[Number(event.key) - 1]) location.hash = views[Number(event.key) - 1];
});
window.addEventListener("hashchange", () => {
  show();
  main.focus();
});

onChoice(show);
onToken(askForToken);
show();
setInterval(tell, 1000);
function learnRole() {
  get("api/me").then(
    (me) => {
      document.body.dataset.app = me.app;
      document.body.classList.toggle("reads", me.role !== "admin");
      document.body.classList.toggle("blind", !me.sees_values);
      fill(document.getElementById("name"), me.app || "celery_affinity");
    },
    () => document.body.classList.add("reads"),
  );
}

function withToken() {
  askAgain();
  learnRole();
  show();
}

learnRole();
listen(hear, (words, status) => {
  if (status !== 401) isDown(`The server of this page does not answer: ${words}. The page keeps trying.`);
  else if (down.hidden) isDown("This server requires a token. ", el("button", { onclick: withToken }, "Enter a token"));
});
