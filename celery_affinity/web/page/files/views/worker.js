// One worker: its types and slots, what runs there since when, what ran there, and its process.
import { get } from "../api.js";
import { bytes, duration, el, fill, link, many, moment, table } from "../dom.js";
import { draining, notes, slots } from "./workers.js";

const LOOK_EVERY_MS = 5000;

const versionsOf = (process) => Object.entries(process.versions).map(([name, version]) => `${name} ${version}`).join(", ");

function facts(rows, found, process, held) {
  const worker = rows[0];
  const all = [
    ["serves", [...new Set(rows.flatMap((each) => each.types))].join(", ") || "nothing"],
    ["slots", el("div", {}, ...rows.map(slots))],
    ["claims", many(held, "job")],
    ["last heartbeat", `${duration(worker.last_heartbeat_s)} ago`],
    ["note", rows.map(notes).filter(Boolean).join("; ")],
    ["hints", Object.entries(found?.hints ?? {}).map(([hint, at]) => `${hint} (${moment(at)})`).join(", ")],
    ["process", process && `${process.pid}, pool ${process.pool.split(".").at(-1)}, up for ${duration(process.uptime_s)}`],
    ["memory", process && `${bytes(process.memory_bytes)} at most`],
    ["versions", process && versionsOf(process)],
    ["id", rows.map((each) => each.id).join(", ")],
  ].filter(([, value]) => value);
  return el("dl", {}, ...all.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

export function worker(name) {
  const about = el("section", {}, el("h1", {}, name), el("p", { class: "soft" }, "loading"));
  const running = table(
    "Claimed jobs",
    [
      { name: "task", value: (row) => row.task ?? "?", kind: "long" },
      { name: "id", value: (row) => link(row.id), key: (row) => row.id },
      { name: "type", value: (row) => row.type },
      { name: "state", value: (row) => row.state },
      { name: "since", value: (row) => duration(row.for_s), kind: "number" },
    ],
    (row) => row.job_id,
    "No jobs are claimed.",
  );
  const recent = table(
    "Recent jobs",
    [
      { name: "ended", value: (row) => moment(row.ended_s) },
      { name: "task", value: (row) => row.task, kind: "long" },
      { name: "id", value: (row) => link(row.id), key: (row) => row.id },
      { name: "state", value: (row) => row.state },
      { name: "waited", value: (row) => duration(row.waited_s), kind: "number" },
      { name: "ran", value: (row) => duration(row.ran_s), kind: "number" },
      { name: "why", value: (row) => row.why ?? "", kind: "long" },
    ],
    (row) => row.job_id,
    "No ended job of this worker is kept. The setting affinity_keep, above 60 s, keeps the last ones.",
  );
  const totals = table(
    "Runs by task, since the worker's start",
    [
      { name: "task", value: (row) => row.task, kind: "long" },
      { name: "runs", value: (row) => row.runs.toLocaleString("en"), kind: "number" },
    ],
    (row) => row.task,
    "The worker has not answered, or has run no task.",
  );
  const unfinished = table(
    "Left unfinished in the last day",
    [
      { name: "at", value: (row) => moment(row.at_s) },
      { name: "id", value: (row) => link(row.task_id || row.job_id), key: (row) => row.job_id },
      { name: "type", value: (row) => row.type },
      { name: "cause", value: (row) => row.why, kind: "long" },
      { name: "then", value: (row) => row.then },
    ],
    (row) => `${row.at_s} ${row.job_id}`,
    "Every job that this worker started has ended there.",
  );
  let news = null;
  let found = null;
  let process = null;

  function draw() {
    if (!news) return;
    const rows = news.status.workers.filter((each) => each.name === name);
    const held = news.claimed.filter((each) => each.worker === name).map((each) => ({ ...each, for_s: Math.max(0, news.now_s - (each.started_s ?? each.claimed_s ?? news.now_s)) }));
    running.update(held.sort((a, b) => b.for_s - a.for_s));
    if (!rows.length) {
      fill(about, el("h1", {}, name), el("p", {}, "No live worker has this name. Its jobs return to the queue; its last ones may be listed below."));
      return;
    }
    const focused = about.contains(document.activeElement);
    const button = draining({ ...rows[0], types: rows.flatMap((each) => each.types), all: news.status.workers });
    fill(about, el("h1", {}, name), facts(rows, found, process, rows.reduce((sum, each) => sum + each.held, 0)), button && el("div", { class: "buttons" }, button));
    if (focused) about.querySelector("button")?.focus();
  }

  async function look(withProcess = false) {
    if (document.hidden) return;
    await get(`api/workers/${encodeURIComponent(name)}/details${withProcess ? "?process=1" : ""}`).then(
      (reply) => {
        found = reply;
        process = reply.process ?? process;
        unfinished.update(reply.unfinished);
        recent.update(reply.recent);
        totals.update(Object.entries(process?.totals ?? {}).map(([task, runs]) => ({ task, runs })).sort((a, b) => b.runs - a.runs));
        draw();
      },
      () => {},
    );
  }
  look(true);
  const timer = setInterval(look, LOOK_EVERY_MS);
  return {
    title: name,
    parts: [about, ...[running, recent, totals, unfinished].map((each) => el("section", {}, each))],
    gone: () => clearInterval(timer),
    update(latest) {
      news = latest;
      draw();
    },
  };
}
