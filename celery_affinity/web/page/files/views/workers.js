// Workers by what they serve: their slots, and what runs there since when.
import { get } from "../api.js";
import { change } from "../asking.js";
import { only } from "../cohorts.js";
import { duration, el, link, number, table, workerLink } from "../dom.js";

const LOOK_EVERY_MS = 5000;

export function slots(worker) {
  const busy = worker.slots - worker.free;
  const shown = Math.min(worker.slots, 40);
  const marks = Array.from({ length: shown }, (_, nth) => el("i", { class: nth < (busy * shown) / Math.max(1, worker.slots) ? "busy" : "" }));
  return el("div", { class: "slots", role: "img", "aria-label": `${busy} of ${worker.slots} slots are busy` }, ...marks, ` ${busy} of ${worker.slots}`);
}

export function notes(worker) {
  const found = worker.cohort ? [`cohort ${worker.cohort}`] : [];
  if (worker.draining) found.push("draining: it ends after its running jobs");
  else if (!worker.types.length) found.push("takes no jobs: it is drained or has no queue");
  if (worker.priority) found.push(`priority ${worker.priority}: lower numbers are preferred, if placement is weighted`);
  if (worker.stalled) found.push("✗ its event loop is blocked");
  if (worker.is_slow) found.push(`✗ slow: its ${worker.pace.type} jobs take ${worker.pace.times.toFixed(1)} times as long as on other workers`);
  if (worker.withdrawn.length) found.push(`takes no ${worker.withdrawn.join(", ")} jobs for the moment`);
  return found.join("; ");
}

// What is left without a worker if this one takes no jobs.
function alone(worker, others) {
  const left = worker.types.filter((type) => !others.some((each) => each.id !== worker.id && !each.draining && each.types.includes(type)));
  return left.length ? [`No other worker serves ${left.join(", ")}: these jobs wait until it is resumed.`] : [];
}

export function draining(worker) {
  const others = worker.all;
  const path = `api/workers/${encodeURIComponent(worker.name)}`;
  if (worker.draining) return null; // it ends
  if (!worker.types.length) {
    return change({ name: "Resume", title: `Resume ${worker.name}`, words: ["The worker takes jobs of its queues again, as before it was drained."], path: `${path}/resume`, done: () => `${worker.name} takes jobs again` });
  }
  return change({
    name: "Drain",
    title: `Drain ${worker.name}`,
    words: ["The worker takes no new jobs until it is resumed, or restarted. Jobs that have not started go back to the queue. Running jobs finish.", ...alone(worker, others)],
    path: `${path}/drain`,
    done: (reply) => `${worker.name}: ${reply.ok}`,
  });
}

function room(scale) {
  const missing = scale.wanted_slots - scale.slots;
  if (missing > 0) return `${number(missing)} more wanted`;
  return missing < 0 ? `${number(-missing)} not needed` : "";
}

export function workers() {
  const all = table(
    "Workers",
    [
      { name: "worker", value: (row) => workerLink(row.name), key: (row) => row.name, kind: "long" },
      { name: "serves", value: (row) => row.types.join(", "), kind: "long" },
      { name: "busy slots", value: slots, key: (row) => `${row.slots} ${row.free}` },
      { name: "longest run", value: (row) => row.longest, kind: "long" },
      { name: "last heartbeat", value: (row) => `${duration(row.last_heartbeat_s)} ago`, kind: "number" },
      { name: "note", value: notes, kind: "note" },
      { name: "", value: draining, key: (row) => [row.draining, row.types.length === 0, alone(row, row.all)] },
    ],
    (row) => row.id,
    "No worker is alive.",
  );
  const claimed = table(
    "Claimed jobs",
    [
      { name: "task", value: (row) => row.task ?? "?", kind: "long" },
      { name: "id", value: (row) => link(row.id), key: (row) => row.id },
      { name: "type", value: (row) => row.type },
      { name: "worker", value: (row) => (row.worker ? workerLink(row.worker) : "?"), key: (row) => row.worker, kind: "long" },
      { name: "state", value: (row) => row.state },
      { name: "since", value: (row) => duration(row.for_s), kind: "number" },
      { name: "calls", value: (row) => (row.calls > 1 ? String(row.calls) : ""), kind: "number" },
    ],
    (row) => row.job_id,
    "No jobs are claimed.",
  );
  const scale = table(
    "Slots wanted, so that waiting jobs start within 30 s",
    [
      { name: "workers for", value: (row) => row.types.join(", "), kind: "long" },
      { name: "slots", value: (row) => number(row.slots), kind: "number" },
      { name: "busy", value: (row) => number(row.running), kind: "number" },
      { name: "jobs waiting", value: (row) => number(Math.ceil(row.waiting)), kind: "number" },
      { name: "work", value: (row) => duration(row.work_s), kind: "number" },
      { name: "wanted slots", value: (row) => number(row.wanted_slots), kind: "number" },
      { name: "note", value: room, kind: "note" },
    ],
    (row) => `${row.cohort ?? ""} ${row.profile}`,
    "No worker is alive, and no job waits.",
  );

  async function look() {
    if (document.hidden) return;
    await get("api/scale").then((found) => scale.update(only(found)), () => {}); // without news the page says that all is old
  }
  look();
  const timer = setInterval(look, LOOK_EVERY_MS);
  return {
    title: "Workers",
    parts: [el("section", {}, all), el("section", {}, scale), el("section", {}, claimed)],
    gone: () => clearInterval(timer),
    update({ status, claimed: jobs, now_s }) {
      const rows = jobs.map((each) => ({ ...each, for_s: Math.max(0, now_s - (each.started_s ?? each.claimed_s ?? now_s)) }));
      rows.sort((a, b) => b.for_s - a.for_s);
      const longest = new Map();
      for (const row of rows) if (!longest.has(row.worker)) longest.set(row.worker, `${row.task}, ${duration(row.for_s)}`);
      all.update(
        status.workers.map((each) => ({ ...each, all: status.workers, longest: longest.get(each.name) ?? "" })),
        (row) => (row.stalled || row.is_slow ? "bad" : ""),
      );
      claimed.update(rows);
    },
  };
}
