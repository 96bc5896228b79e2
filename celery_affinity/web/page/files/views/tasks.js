// Tasks by name, and the failed jobs: as far as ended jobs are kept.
import { call, get } from "../api.js";
import { change, changeEach } from "../asking.js";
import { only } from "../cohorts.js";
import { duration, el, fill, jobsOf, link, many, moment, number, table, workerLink } from "../dom.js";

const LOOK_EVERY_MS = 15_000;
const AGAIN = "published again with the same arguments. The callers already have the failure; a new result replaces it.";

const pathOf = (row) => `api/jobs/${encodeURIComponent(row.job_id)}/retry`;

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
      { name: "", value: (row) => (row.replayable ? runAgain(row) : null), key: (row) => row.replayable },
    ],
    (row) => row.job_id,
    "No failed job is kept.",
  );
  let all = [];
  let task = "";
  const chooser = el("select", { onchange: (event) => (task = event.target.value, draw()) });
  const acts = el("div", { class: "buttons" });
  const bar = el("div", { class: "bar" }, el("label", {}, "Task ", chooser), acts);

  function runAgain(row) {
    return change({ name: "Run again", title: `Run ${row.task} again`, words: [`The job is ${AGAIN}`], path: pathOf(row), done: (reply) => reply.note, after: again });
  }

  function draw() {
    const names = [...new Set(all.map((row) => row.task))].sort();
    if (!names.includes(task)) task = "";
    fill(chooser, el("option", { value: "" }, "any"), ...names.map((name) => el("option", { value: name, selected: name === task }, name)));
    const shown = all.filter((row) => !task || row.task === task);
    const replayable = shown.filter((row) => row.replayable);
    failed.update(shown);
    bar.hidden = all.length === 0;
    if (acts.dataset.ids === replayable.map((row) => row.job_id).join()) return;
    acts.dataset.ids = replayable.map((row) => row.job_id).join();
    const what = { name: "Run again", title: `Run ${many(replayable.length, "failed job")} again`, words: [`The jobs are ${AGAIN}`], after: again };
    fill(acts, replayable.length ? changeEach("failed job", replayable, (row) => call("POST", pathOf(row)), what) : el("span", { class: "soft" }, "None of these can run again: their messages are not kept."));
  }

  async function look(fresh = false) {
    if (document.hidden) return;
    await get(`api/ended${fresh ? "?fresh=1" : ""}`).then(
      (found) => {
        byName.update(only(found.tasks), (row) => (row.failed ? "bad" : ""));
        all = only(found.failed);
        draw();
      },
      () => {}, // without news the page says that all is old
    );
  }
  const again = () => look(true);
  look();
  const timer = setInterval(look, LOOK_EVERY_MS);
  const about = el("p", { class: "soft" }, "The last 1,000 ended jobs that are kept, with at most 200 failed ones. A job's page has its arguments, result and traceback.");
  return { title: "Tasks", parts: [el("section", {}, byName, about), el("section", {}, bar, failed)], gone: () => clearInterval(timer) };
}
