// One job: its whole explanation, drawn. Why it waits, who is ahead, which slots fit.
import { get } from "../api.js";
import { change } from "../asking.js";
import { duration, el, fill, link, many, mode, moment, number, short, table } from "../dom.js";
import { resuming } from "./rules.js";

const LOOK_EVERY_MS = 2000;
const TERMS = [
  ["priority", "priority"],
  ["age", "age"],
  ["rarity", "rarity"],
  ["on_demand", "on demand"],
];

const forTenant = (stop) => `for tenant ${stop.tenant}${stop.minimum ? `, below its minimum of ${number(stop.minimum)}` : ""}`;
const grace = (stop) => `${duration(stop.left_s)} of ${duration(stop.grace_s)} grace left`;

// When and for whom the job was stopped last, and for whom it is being stopped.
function stops({ stopped, stops, waiting } = {}) {
  return [
    ["stopped", stopped && `on ${stopped.worker} at ${moment(stopped.at_s)}, after ${duration(stopped.ran_s)}, ${forTenant(stopped)}; ${many(stopped.times, "time")}, of ${number(stopped.most)} at most`],
    ["being stopped", waiting ? null : stops?.map((each) => `${forTenant(each)}: ${grace(each)}`).join("; ")],
  ];
}

function facts(job) {
  const rows = [
    ["task", job.task],
    ["id", job.id],
    ["type", job.type],
    ["mode", job.mode && `${mode(job.mode === "on_demand")}, priority ${job.priority}`],
    ["enqueued", job.enqueued_s && moment(job.enqueued_s)],
    ["due", job.due_s && moment(job.due_s)],
    ["starts by", job.start_by_s && moment(job.start_by_s)],
    ["deadline", job.deadline_s && moment(job.deadline_s)],
    ["waits for more calls until", job.patient_until_s && moment(job.patient_until_s)],
    ["starts again at", job.paused_until_s && moment(job.paused_until_s)],
    ["claimed", job.claimed_s && moment(job.claimed_s)],
    ["started", job.started_s && moment(job.started_s)],
    ["ended", job.ended_s && moment(job.ended_s)],
    ["waited", job.waited_s !== null && job.state !== "pending" && job.state !== "scheduled" ? duration(job.waited_s) : null],
    ["ran", job.ran_s === null ? null : `${duration(job.ran_s)}${job.started_s === null ? " since its claim (the start time is unknown)" : ""}`],
    ["worker", job.worker],
    ["unfinished attempts", job.deliveries ? many(job.deliveries, "time") : null],
    ["requeued", job.requeues ? many(job.requeues, "time") : null],
    [job.keys?.length > 1 ? "keys" : "key", job.keys?.join(", ")],
    ["hint", job.hint],
    ["merge key", job.merge_key],
    ["merged", job.calls > 1 ? `with ${many(job.calls - 1, "other call")}` : null],
    ...stops(job.explanation ?? undefined),
    ["reason", job.reason],
    ["why", job.why],
    ["note", job.explanation?.note ?? job.note],
    ["source", job.source === "backend" ? "only the result backend still has this task" : null],
  ];
  const found = rows.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el("dl", {}, ...found.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))]));
}

// The job's life as a bar: how long it was scheduled, pending and running, and what blocks it now.
function timeline(job) {
  const now = job.explanation?.now_s ?? Date.now() / 1000;
  const enqueued = job.enqueued_s;
  if (!enqueued) return null;
  const due = Math.max(enqueued, job.due_s ?? job.paused_until_s ?? enqueued);
  const ended = job.has_ended ? (job.ended_s ?? now) : now;
  const claimed = job.state === "pending" || job.state === "scheduled" ? null : job.claimed_s;
  const starts = claimed ?? ended;
  const parts = [
    ["scheduled", Math.min(due, ended) - enqueued],
    ["pending", Math.min(starts, ended) - Math.min(due, ended)],
    [job.state === "claimed" ? "claimed" : "running", claimed === null ? 0 : ended - claimed],
  ].filter(([, seconds]) => seconds > 0.0005);
  const total = parts.reduce((sum, [, seconds]) => sum + seconds, 0);
  if (!total) return null;
  const label = ([name, seconds]) => `${name} ${short(seconds)}`;
  const blocker = job.explanation?.waiting?.blocked_by?.[0]?.why;
  return el(
    "div",
    { class: "timeline" },
    el("div", { class: "terms", role: "img", "aria-label": parts.map(label).join(", ") }, ...parts.map((part) => el("span", { class: part[0], style: { width: `${(100 * part[1]) / total}%` } }, label(part)))),
    el("p", { class: "soft" }, parts.map(label).join(", ")),
    blocker ? el("p", {}, el("b", {}, "Blocked by: "), blocker) : null,
  );
}

function terms(score) {
  const total = Math.max(1e-9, TERMS.reduce((sum, [name]) => sum + Math.max(0, score[name] ?? 0), 0));
  const parts = TERMS.filter(([name]) => score[name] > 0);
  return el(
    "div",
    {},
    el(
      "div",
      { class: "terms", role: "img", "aria-label": `score ${number(Math.round(score.total))}: ${parts.map(([name, words]) => `${words} ${number(Math.round(score[name]))}`).join(", ")}` },
      ...parts.map(([name, words]) => el("span", { class: name === "on_demand" ? "demand" : name, style: { width: `${(100 * score[name]) / total}%` } }, `${words} ${number(Math.round(score[name]))}`)),
    ),
    el("p", { class: "soft" }, `score ${number(Math.round(score.total))} = ${parts.map(([name, words]) => `${number(Math.round(score[name]))} ${words}`).join(" + ")}`),
  );
}

function waiting(found) {
  const ahead = table(
    "Ahead",
    [
      { name: "jobs", value: (row) => number(row.jobs), kind: "number" },
      { name: "type", value: (row) => row.type, kind: "long" },
      { name: "mode", value: (row) => mode(row.on_demand) },
      { name: "priority", value: (row) => String(row.priority), kind: "number" },
      { name: "note", value: (row) => (row.kept_back ? "blocked by a key or a quota" : "") },
    ],
    (row) => JSON.stringify([row.type, row.on_demand, row.priority, row.kept_back]),
    "No jobs are ahead.",
  );
  ahead.update(found.ahead);
  const slots = table(
    "Slots that fit",
    [
      { name: "workers for", value: (row) => row.types.join(", "), kind: "long" },
      { name: "workers", value: (row) => number(row.workers), kind: "number" },
      { name: "slots", value: (row) => number(row.slots), kind: "number" },
      { name: "free", value: (row) => number(row.free), kind: "number" },
    ],
    (row) => JSON.stringify(row),
    "No live worker serves this type: start one with -Q and the type.",
  );
  slots.update(found.slots ?? []);
  const guesses = [
    found.not_before ? `The job starts at ${moment(found.not_before.at_s)} at the earliest: ${found.not_before.why}.` : null,
    found.overdue_since_s ? `The job that holds its key should have ended at ${moment(found.overdue_since_s)}, according to usual run times.` : null,
    found.turn ? `${number(found.turn.before)} of ${many(found.turn.turns, "turn")} of tenants for its slots come before it.` : null,
    found.estimate_s === null ? null : `Estimate from recent run times: the job starts in about ${duration(found.estimate_s)}.`,
    found.bound_s === null ? null : `From ${moment(found.passed_until_s)} on, newly published jobs can no longer take a slot that this job could use (while no rule blocks it).`,
  ].filter((each) => each !== null);
  const blocked = found.blocked_by?.length ? found.blocked_by.map((each) => each.why) : ["nothing: a slot has just become free"];
  return [
    el("section", {}, el("h2", {}, "Why it waits"), el("ul", {}, ...blocked.map((each) => el("li", {}, each))), terms(found.score), el("p", {}, `Rank ${number(found.rank_in_type)} of its type, ${number(found.rank)} of all jobs that its slots could take.`), ...guesses.map((each) => el("p", {}, each))),
    el("section", {}, ahead),
    el("section", {}, slots),
  ];
}

// The jobs that are being stopped for the tenant of this one, or why none is.
function preempting({ stops, why_no_stop: why }) {
  if (!stops.length) return why ? el("section", {}, el("h2", {}, "Jobs that are stopped for it"), el("p", {}, why)) : null;
  const all = table(
    "Jobs that are stopped for it",
    [
      { name: "id", value: (row) => link(row.task), key: (row) => row.task },
      { name: "worker", value: (row) => row.worker, kind: "long" },
      { name: "grace", value: grace, kind: "number" },
    ],
    (row) => row.task,
    "",
  );
  all.update(stops);
  return el("section", {}, all);
}

// The workers that hold the hint of the job.
function near({ workers, bonus }) {
  const all = table(
    "Workers that hold its hint",
    [
      { name: "worker", value: (row) => row.name, kind: "long" },
      { name: "last used", value: (row) => `${duration(row.used_s)} ago`, kind: "number" },
      { name: "free", value: (row) => number(row.free), kind: "number" },
    ],
    (row) => row.name,
    "No worker holds its hint.",
  );
  all.update(workers);
  const there = bonus ? `The job gets ${number(bonus)} points more there.` : "The job gets no bonus there (affinity_locality_bonus).";
  return el("section", {}, all, workers.length ? el("p", { class: "soft" }, there) : null);
}

// What the job was called with, and what came of it.
function values(found) {
  const rows = [
    ["arguments", found.args],
    ["keyword arguments", found.kwargs],
    ["status", found.status],
    ["result", found.status === "SUCCESS" ? JSON.stringify(found.result, null, 2) : null],
    ["error", found.error],
    ["traceback", found.traceback],
    ["note", found.note],
  ].filter(([, value]) => value !== null);
  const known = rows.length ? el("dl", {}, ...rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, el("pre", {}, value))])) : el("p", { class: "soft" }, "Neither the broker nor the result backend has them.");
  return el("section", {}, el("h2", {}, "Arguments and result"), known);
}

function acts(job, look) {
  const path = `api/jobs/${encodeURIComponent(job.id)}`;
  const found = [];
  if (["scheduled", "pending", "claimed"].includes(job.state)) {
    found.push(change({ name: "Cancel", title: "Cancel this job", words: ["The job will not start. Its caller gets REVOKED."], method: "DELETE", path, done: (reply) => reply.note, after: look }));
  }
  if (["scheduled", "pending"].includes(job.state)) {
    const moved = { method: "PATCH", path, done: (reply) => reply.note, after: look };
    const together = job.calls > 1 ? [`The job is a run of ${number(job.calls)} merged calls. All of them change together.`] : [];
    const stays = "The job keeps its enqueue time. A retry keeps the change.";
    found.push(
      change({ name: "Move", title: "Move this job to another type", words: ["Workers that serve the new type will run the job.", stays, ...together], fields: [["type", "Type", { required: true, value: job.type, maxlength: 255 }]], body: (values) => ({ type: values.type }), ...moved }),
      change({ name: "Priority", title: "Give this job another priority", words: ["10 is the highest.", stays, ...together], fields: [["priority", "Priority", { type: "number", required: true, min: 0, max: 10, value: job.priority }]], body: (values) => ({ priority: Number(values.priority) }), ...moved }),
      job.mode === "on_demand"
        ? change({ name: "Queue", title: "Make this a queued job", words: [stays, ...together], body: () => ({ mode: "queued" }), ...moved })
        : change({ name: "On demand", title: "Make this an on-demand job", words: ["On-demand jobs start before queued jobs of the same age and priority.", stays, ...together], body: () => ({ mode: "on_demand" }), ...moved }),
    );
  }
  if (job.state === "running") {
    found.push(
      change({ name: "Terminate", title: "Terminate this run", words: ["The process that runs the job is killed, if the pool supports it. The caller gets REVOKED."], method: "DELETE", path: `${path}?terminate=true`, done: (reply) => reply.note, after: look }),
    );
  }
  if (job.state === "dead") {
    found.push(change({ name: "Run again", title: "Run this job again", words: ["The job is published again with the same arguments, as a new job."], path: `${path}/retry`, done: (reply) => reply.note, after: look }));
  }
  const pauses = (job.explanation?.waiting?.blocked_by ?? []).map((each) => each.pause).filter((pause) => pause);
  found.push(...pauses.map((pause) => resuming(pause, look)));
  return found.length ? el("div", { class: "buttons" }, ...found) : null;
}

export function job(id) {
  const root = el("div", { class: "job" }, el("p", { class: "soft" }, "loading"));
  let shown = "";
  let asks = false; // whether arguments and result are to be seen
  const reveal = () => el("div", { class: "buttons values" }, el("button", { onclick: () => look((asks = !asks)) }, asks ? "Hide arguments and result" : "Show arguments and result"));
  async function look() {
    if (document.hidden || document.querySelector("dialog[open]")) return;
    let found;
    try {
      found = await get(`api/jobs/${encodeURIComponent(id)}?explain=1${asks ? "&values=1" : ""}`);
    } catch (error) {
      if (error.found?.state === undefined) {
        fill(root, el("section", {}, el("p", {}, error.message)));
        return;
      }
      found = error.found; // the job is unknown
    }
    const text = JSON.stringify(found);
    if (text === shown) return;
    shown = text;
    const focused = document.activeElement?.textContent;
    const lasts = found.explanation?.since_s ? duration(found.explanation.now_s - found.explanation.since_s) : null;
    const since = lasts === null ? "" : found.has_ended ? ` ${lasts} ago` : ` for ${lasts}`;
    fill(
      root,
      el("section", {}, el("h1", {}, found.task ?? "Job ", " ", el("span", { class: `state ${found.state}` }, found.state), since), timeline(found), facts(found), acts(found, look), reveal()),
      found.values ? values(found.values) : null,
      ...(found.explanation?.waiting ? waiting(found.explanation.waiting) : []),
      found.explanation?.waiting ? preempting(found.explanation) : null,
      found.explanation?.near ? near(found.explanation.near) : null,
    );
    if (focused) [...root.querySelectorAll("button")].find((each) => each.textContent === focused)?.focus();
  }
  look();
  const timer = setInterval(look, LOOK_EVERY_MS);
  return { title: "Job", parts: [root], gone: () => clearInterval(timer) };
}
