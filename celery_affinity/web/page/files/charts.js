// The charts of the fleet's history, which the broker keeps: what ended, failed and waited; slots and memory.
import { get } from "./api.js";
import { isOf, only } from "./cohorts.js";
import { bytes, el, tick } from "./dom.js";
import { plot } from "./plot.js";

const PERIODS = { "15m": "15 minutes", "1h": "1 hour", "1d": "1 day", "1w": "1 week" };
// Name in the browser's storage of the chosen period.
const CHOSEN = "celery_affinity period";
const LOOK_EVERY_MS = 10_000;
const LONG_EVERY_MS = 60_000;

const rate = (value) => `${value < 10 ? Number(value.toFixed(2)) : Math.round(value)}/s`;
const count = (value) => value.toLocaleString("en", { maximumFractionDigits: 1 });
const share = (value) => `${Math.round(value)} %`;

export function charts() {
  const stored = localStorage.getItem(CHOSEN);
  let period = stored in PERIODS ? stored : "15m";
  const plots = {
    ended: plot("Jobs ended per second", { text: rate, least: 0.1 }),
    failed: plot("Jobs failed per second", { text: rate, least: 0.1 }),
    waiting: plot("Pending jobs", { text: count, least: 4 }),
    busy: plot("Busy slots", { text: share, how: Math.max, bound: 100 }),
    p50: plot("Wait of jobs that started, p50", { text: tick, how: Math.max, least: 0.1 }),
    p95: plot("Wait of jobs that started, p95", { text: tick, how: Math.max, least: 0.1 }),
    memory: plot("Memory of Redis", { text: bytes, how: Math.max, least: 1_000_000 }),
  };
  const choice = el(
    "fieldset",
    { class: "period" },
    el("legend", { class: "hidden" }, "Period of the charts"),
    ...Object.entries(PERIODS).map(([value, label]) =>
      el("label", {}, el("input", { type: "radio", name: "period", value, checked: value === period, onchange: () => choose(value) }), el("span", {}, label)),
    ),
  );
  const root = el("div", { class: "charts" }, choice, el("div", { class: "plots" }, ...Object.values(plots)));
  let shown = null;
  let last = 0;
  // What to do if there are no values: a text without a worker, and null otherwise.
  let missing = null;

  function draw() {
    if (!shown) return;
    const { at_s, types, cohorts } = shown;
    // A young fleet has no points in the first part of the period: a sixth of the period is shown at least.
    const known = cohorts.map((each) => each.slots.findIndex((value) => value !== null)).filter((place) => place >= 0);
    const from = Math.min(Math.min(...known, at_s.length), at_s.length - Math.ceil(at_s.length / 6));
    const at = at_s.slice(from);
    const its = types.filter((each) => isOf(each.type));
    const lines = (name) => Object.fromEntries(its.map((each) => [each.type, each[name].slice(from)]));
    const some = (name) => Object.fromEntries(Object.entries(lines(name)).filter(([, values]) => values.some((value) => value)));
    const of = (what) => Object.fromEntries(only(cohorts).map((each) => [each.cohort ?? "all workers", what(each).slice(from)]));
    const nothing = (words) => missing ?? words;
    plots.ended.update(at, some("ended_per_s"), nothing("No job has ended in this time."));
    plots.failed.update(at, some("failed_per_s"), missing ?? "No job has failed in this time.");
    plots.waiting.update(at, lines("waiting"), nothing("No job was pending in this time."));
    plots.p50.update(at, lines("p50_s"), nothing("No job has started in this time."));
    plots.p95.update(at, lines("p95_s"), nothing("No job has started in this time."));
    const busy = of((each) => each.slots.map((slots, place) => (slots ? (100 * each.busy[place]) / slots : null)));
    plots.busy.update(at, busy, nothing("No worker had slots in this time."));
    plots.memory.update(at, of((each) => each.memory_bytes.map((value) => value || null)), nothing("The first values come within 10 s of a worker's start."));
  }

  async function look() {
    if (document.hidden || !root.isConnected) return;
    last = Date.now();
    const asked = period;
    await get(`api/history?period=${period}`).then(
      (found) => {
        if (asked !== period) return;
        shown = found;
        draw();
      },
      () => {}, // without news the page says that all is old
    );
  }

  function choose(value) {
    period = value;
    localStorage.setItem(CHOSEN, value);
    look();
  }

  const timer = setInterval(() => {
    const isShort = period === "15m" || period === "1h";
    if (Date.now() - last >= (isShort ? LOOK_EVERY_MS : LONG_EVERY_MS) - 100) look();
  }, LOOK_EVERY_MS);
  setTimeout(look);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", draw);
  window.addEventListener("resize", draw);

  root.update = ({ status }) => {
    const type = status.types.find((each) => each.pending)?.type ?? "QUEUE";
    const words = status.workers.length ? null : `No worker is running: celery -A ${document.body.dataset.app || "proj"} worker -Q ${type}`;
    if (words === missing) return;
    missing = words;
    draw();
  };
  root.gone = () => {
    clearInterval(timer);
    dark.removeEventListener("change", draw);
    window.removeEventListener("resize", draw);
    for (const each of Object.values(plots)) each.gone();
  };
  return root;
}
