// What is next, and why: the pending jobs in the order of claims; and what waits because of a rule.
import { duration, el, link, mode, number, table } from "../dom.js";
import { due } from "./due.js";
import { notes } from "./now.js";

function note({ cohort, served, note: why }) {
  const found = cohort ? [`cohort ${cohort}`] : [];
  if (why) found.push(served ? why : `✗ ${why}`);
  return found.join("; ");
}

// Consecutive jobs of one type, mode, priority and note as one row: the first job stands for them.
function grouped(jobs) {
  const rows = [];
  jobs.forEach((job, place) => {
    const last = rows.at(-1);
    const is = (name) => last[name] === job[name];
    if (last && ["type", "on_demand", "priority", "note", "task", "cohort", "served"].every(is)) {
      last.number += 1;
      last.nth = `${last.first} to ${place + 1}`;
    } else rows.push({ ...job, number: 1, first: place + 1, nth: String(place + 1) });
  });
  return rows;
}

export function next() {
  const upcoming = table(
    "Next",
    [
      { name: "place", value: (row) => row.nth, kind: "number" },
      { name: "jobs", value: (row) => number(row.number), kind: "number" },
      { name: "task", value: (row) => row.task || "?", kind: "long" },
      { name: "first id", value: (row) => link(row.task_id), key: (row) => row.task_id },
      { name: "type", value: (row) => row.type },
      { name: "mode", value: (row) => mode(row.on_demand) },
      { name: "priority", value: (row) => String(row.priority), kind: "number" },
      { name: "waited", value: (row) => duration(row.waited_s), kind: "number" },
      { name: "score", value: (row) => number(Math.round(row.score)), kind: "number" },
      { name: "note", value: note, kind: "note" },
    ],
    (row) => row.job_id,
    "No job is pending.",
  );
  const kept = table(
    "Why jobs are blocked",
    [
      { name: "type", value: (row) => row.type, kind: "long" },
      { name: "pending", value: (row) => number(row.pending), kind: "number" },
      { name: "why", value: (row) => notes(row, row.pauses), kind: "note" },
    ],
    (row) => row.type,
    "No rule blocks a job. Jobs wait only for free slots.",
  );
  const { section, gone } = due();
  return {
    title: "Next",
    parts: [el("section", {}, upcoming), section, el("section", {}, kept)],
    gone,
    update({ status, next: jobs }) {
      upcoming.update(grouped(jobs), (row) => (row.served ? "" : "bad"));
      kept.update(status.types.map((each) => ({ ...each, pauses: status.pauses })).filter((each) => each.pending && (each.paused || each.kept_back || each.kept_back_by_limit || each.kept_back_by_reserves || each.unserved)));
    },
  };
}
