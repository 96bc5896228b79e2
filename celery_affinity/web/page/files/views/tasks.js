// Tasks by name, and the failed jobs: as far as ended jobs are kept.
import { get } from "../api.js";
import { only } from "../cohorts.js";
import { duration, el, jobsOf, link, moment, number, table, workerLink } from "../dom.js";

const LOOK_EVERY_MS = 15_000;

export function tasks() {
  const byName = table(
    "Tasks",
    [
      { name: "task", value: (row) => jobsOf({ task: row.task }, row.task), key: (row) => row.task, kind: "long" },
      { name: "types", value: (row) => row.types.join(", "), kind: "long" },
      { name: "runs", value: (row) => number(row.runs), kind: "number" },
      { name: "failed", value: (row) => number(row.failed), kind: "number" },
      { name: "wait p50", value: (row) => duration(row.wait_p50_s), kind: "number" },
      { name: "wait p95", value: (row) => duration(row.wait_p95_s), kind: "number" },
      { name: "run p50", value: (row) => duration(row.run_p50_s), kind: "number" },
      { name: "run p95", value: (row) => duration(row.run_p95_s), kind: "number" },
      { name: "expected", value: (row) => duration(row.expected_s), kind: "number" },
      { name: "last failure", value: (row) => row.last_failure ?? "", kind: "note" },
    ],
    (row) => `${row.cohort ?? ""} ${row.task}`,
    "No ended job is kept. Set affinity_keep above 60 s, such as 3600: Rules, Settings.",
  );
  const failed = table(
    "Failed jobs",
    [
      { name: "ended", value: (row) => moment(row.ended_s) },
      { name: "task", value: (row) => row.task, kind: "long" },
      { name: "id", value: (row) => link(row.id), key: (row) => row.id },
      { name: "type", value: (row) => row.type },
      { name: "worker", value: (row) => (row.worker ? workerLink(row.worker) : ""), key: (row) => row.worker, kind: "long" },
      { name: "ran", value: (row) => duration(row.ran_s), kind: "number" },
      { name: "why", value: (row) => row.why ?? "", kind: "long" },
    ],
    (row) => row.job_id,
    "No failed job is kept.",
  );
  async function look() {
    if (document.hidden) return;
    await get("api/tasks").then((found) => byName.update(only(found), (row) => (row.failed ? "bad" : "")), () => {});
    await get("api/jobs?state=failed&limit=1000").then((found) => failed.update(only(found.jobs).sort((a, b) => b.ended_s - a.ended_s).slice(0, 100)), () => failed.update([])); // without a list if none is kept
  }
  look();
  const timer = setInterval(look, LOOK_EVERY_MS);
  const about = el("p", { class: "soft" }, "The last 1,000 ended jobs that are kept. A job's page has its arguments, result and traceback.");
  return { title: "Tasks", parts: [el("section", {}, byName, about), el("section", {}, failed)], gone: () => clearInterval(timer) };
}
