// The jobs that are expected to start after their due time, for the view of the next jobs.
import { get } from "../api.js";
import { only } from "../cohorts.js";
import { duration, el, fill, link, many, moment, table } from "../dom.js";

const LOOK_EVERY_MS = 15_000;

export function due() {
  const late = table(
    "Due",
    [
      { name: "due", value: (row) => moment(row.due_s) },
      { name: "id", value: (row) => link(row.task_id || row.job_id), key: (row) => row.task_id || row.job_id },
      { name: "type", value: (row) => row.type },
      { name: "late", value: (row) => (row.late_s === null ? "?" : duration(row.late_s)), kind: "number" },
      { name: "why", value: (row) => row.why, kind: "note" },
    ],
    (row) => row.job_id,
    "No job is expected to start after its due time.",
  );
  const counts = el("p", { class: "soft" });
  async function look() {
    if (document.hidden) return;
    await get("api/due").then(
      (report) => {
        late.update(only(report.late), () => "bad");
        fill(counts, `${many(report.waiting, "waiting job")} with a due time to come; ${report.overdue} overdue.`);
      },
      () => {},
    );
  }
  look();
  const timer = setInterval(look, LOOK_EVERY_MS);
  return { section: el("section", {}, late, counts), gone: () => clearInterval(timer) };
}
