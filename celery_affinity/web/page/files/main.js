// The page: its views, by the part of the address after #, and the news that they show.
import { askAgain, get, listen, onToken } from "./api.js";
import { askForToken } from "./asking.js";
import { duration, el, fill, many } from "./dom.js";
import { dead } from "./views/dead.js";
import { job } from "./views/job.js";
import { jobs } from "./views/jobs.js";
import { next } from "./views/next.js";
import { now } from "./views/now.js";
import { rules } from "./views/rules.js";
import { workers } from "./views/workers.js";

const VIEWS = { "": now, workers, next, rules, dead, job, jobs };

const main = document.getElementById("view");
const state = document.getElementById("state");
const away = document.getElementById("away");

// What is known: the newest news, the samples of the last quarter of an hour, and when the server was heard last.
const known = { news: null, samples: [], heard: 0 };
let view = null;

function show() {
  const [, name, ...rest] = location.hash.replace(/^#/, "").split("/");
  const make = VIEWS[name ?? ""] ?? now;
  for (const each of document.querySelectorAll("nav a")) {
    if (each.getAttribute("href") === `#/${name ?? ""}`) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  view?.gone?.();
  view = make(rest.map(decodeURIComponent).join("/"));
  document.title = `${view.title} · celery_affinity`;
  fill(main, ...view.parts);
  if (known.news) view.update?.(known.news, known.samples);
}

function hear(name, data) {
  known.heard = Date.now();
  if (name === "history") known.samples = data;
  if (name === "away") isAway(`The broker does not answer: ${data.why}. The page shows the last known state and resumes by itself.`);
  if (name === "news") {
    isAway(null);
    known.news = data;
    const last = known.samples.at(-1);
    if (!last || last.at < data.sample.at) known.samples.push(data.sample);
    while (known.samples.length && data.sample.at - known.samples[0].at > 900) known.samples.shift();
    view.update?.(data, known.samples);
  }
  tell();
}

function isAway(words, button = null) {
  away.hidden = words === null;
  fill(away, words ?? "", button);
  main.classList.toggle("stale", words !== null);
}

function tell() {
  if (!known.news) return;
  const { status } = known.news;
  const ago = (Date.now() - known.heard) / 1000;
  fill(state, `${many(status.workers.length, "worker")}, ${ago < 6 ? "up to date" : `updated ${duration(ago)} ago`}`);
}

document.getElementById("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const id = document.getElementById("id").value.trim();
  if (id) location.hash = `#/job/${encodeURIComponent(id)}`;
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea, dialog");
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const views = ["#/", "#/workers", "#/next", "#/rules", "#/dead", "#/jobs"];
  if (event.key === "/") {
    event.preventDefault();
    document.getElementById("id").focus();
  } else if (views[Number(event.key) - 1]) location.hash = views[Number(event.key) - 1];
});
window.addEventListener("hashchange", () => {
  show();
  main.focus();
});

onToken(askForToken);
show();
setInterval(tell, 1000);
function learnRole() {
  get("api/me").then(
    (me) => {
      document.body.classList.toggle("reads", me.role !== "admin");
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
  if (status !== 401) isAway(`The server of this page does not answer: ${words}. The page keeps trying.`);
  else if (away.hidden) isAway("This server requires a token. ", el("button", { onclick: withToken }, "Enter a token"));
});
