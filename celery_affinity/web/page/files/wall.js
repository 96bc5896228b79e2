// The wall: the health of the fleet on one dark screen, without interaction. It shows the fleet and its cohorts in turn.
import { get, listen } from "./api.js";
import { duration, el, fill, number, numberOf, short } from "./dom.js";

const TURN_MS = 15_000;
const OLD_MS = 6_000;
// Most types on the screen at a time: further ones have a turn of their own.
const MOST = 7;

const place = Object.fromEntries(["name", "part", "clock", "headline", "tiles", "types"].map((id) => [id, document.getElementById(id)]));
let news = null;
let heard = 0;
let turn = 0;
let why = null;

// A link with a token keeps the token in this tab, and out of the address.
if (location.hash.startsWith("#token=")) {
  sessionStorage.setItem("celery_affinity token", decodeURIComponent(location.hash.slice(7)));
  history.replaceState(null, "", location.pathname);
}

const tile = (name, value, bad = false) => el("div", { class: bad ? "tile bad" : "tile" }, el("b", {}, value), name);

// What has a turn: the whole fleet, then each cohort; a long list of types is several turns.
function turns() {
  const cohorts = [null, ...news.cohorts.map((each) => each.cohort)];
  return cohorts.flatMap((cohort) => {
    const types = news.status.types.filter((each) => cohort === null || each.cohort === cohort).sort((a, b) => b.unserved - a.unserved || b.pending - a.pending || a.type.localeCompare(b.type));
    const pages = Math.max(1, Math.ceil(types.length / MOST));
    return Array.from({ length: pages }, (_, page) => ({ cohort, page, pages, types, shown: types.slice(page * MOST, (page + 1) * MOST) }));
  });
}

function row(type) {
  const busy = type.slots ? (100 * type.busy) / type.slots : 0;
  const waits = news.times.rows.filter((each) => each.type === type.type && each.what !== "run").map((each) => each.p95_s);
  const state = type.unserved ? "no worker" : type.paused ? "paused" : null;
  const bar = el("span", { class: "busy", role: "img", "aria-label": `${type.busy} of ${type.slots} slots are busy` }, el("i", { style: { width: `${busy}%` } }));
  const cells = [type.type, number(type.pending), duration(type.oldest_wait_s), waits.length ? short(Math.max(...waits)) : "–", `${number(type.busy)} of ${number(type.slots)}`, state ?? bar];
  return el("tr", { class: type.unserved ? "bad" : "" }, ...cells.map((cell) => el("td", {}, cell)));
}

function draw() {
  const isOld = why !== null || Date.now() - heard > OLD_MS;
  document.body.classList.toggle("stale", isOld);
  fill(place.clock, new Date().toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" }));
  if (why !== null) {
    place.headline.className = "bad";
    fill(place.headline, why);
  }
  if (!news) return;
  const all = turns();
  const { cohort, page, pages, types, shown } = all[turn % all.length];
  const { status } = news;
  const workers = status.workers.filter((each) => cohort === null || each.cohort === cohort);
  const sum = (rows, name) => rows.reduce((total, each) => total + (each[name] ?? 0), 0);
  const counts = cohort === null ? status : news.cohorts.find((each) => each.cohort === cohort);
  const waits = news.times.rows.filter((each) => each.what !== "run" && types.some((type) => type.type === each.type));
  const p95 = cohort === null ? status.wait_p95_s : waits.length ? Math.max(...waits.map((each) => each.p95_s)) : null;
  if (why === null) {
    place.headline.className = status.headline.level;
    fill(place.headline, status.headline.text);
  }
  fill(place.part, [cohort === null ? (all.length > pages ? "whole fleet" : "") : `cohort ${cohort}`, pages > 1 ? `types ${page * MOST + 1} to ${page * MOST + shown.length} of ${types.length}` : ""].filter(Boolean).join(", "));
  fill(
    place.tiles,
    tile("pending", number(sum(types, "pending"))),
    tile("busy slots", `${number(sum(workers, "slots") - sum(workers, "free"))}/${number(sum(workers, "slots"))}`),
    tile("p95 wait", p95 === null ? "–" : short(p95)),
    tile("scheduled", number(counts.scheduled ?? 0)),
    tile("workers", number(numberOf(workers)), workers.length === 0),
    tile("dead letters", number(counts.dead ?? 0), counts.dead > 0),
  );
  const head = ["type", "pending", "longest wait", "p95 wait", "busy slots", ""];
  fill(place.types, el("table", {}, el("thead", {}, el("tr", {}, ...head.map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, ...shown.map(row))));
}

setInterval(draw, 1000);
setInterval(() => turn++, TURN_MS);
get("api/me").then((me) => fill(place.name, me.app || "celery_affinity"), () => {});
listen(
  (name, data) => {
    why = name === "down" ? `The broker does not answer: ${data.why}` : null;
    if (name === "news") [news, heard] = [data, Date.now()];
    draw();
  },
  (words, status) => {
    why = status === 401 ? "This server requires a token: open /wall#token=TOKEN" : `The server of this page does not answer: ${words}`;
    draw();
  },
);
