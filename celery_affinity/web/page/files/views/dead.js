// Dead letters: why they are there; to have them run again, or forgotten.
import { get } from "../api.js";
import { change, say } from "../asking.js";
import { only } from "../cohorts.js";
import { el, link, moment, table } from "../dom.js";

function acts(letter, look) {
  const id = encodeURIComponent(letter.job_id);
  const replay = change({
    name: "Run again",
    title: `Run ${letter.task} again`,
    words: ["The job is published again with the same arguments, as a new job. Deliveries count from 0."],
    path: `api/dead/${id}/replay`,
    done: () => `${letter.task} waits again`,
    after: look,
  });
  const drop = change({
    name: "Delete",
    title: `Delete the dead letter of ${letter.task}`,
    words: ["The dead letter and its message are deleted. This cannot be undone."],
    method: "DELETE",
    path: `api/dead/${id}`,
    done: () => "The dead letter is deleted",
    after: look,
  });
  return el("div", { class: "slots" }, letter.replayable ? replay : null, drop);
}

const why = ({ cohort, why: words }) => [cohort ? `cohort ${cohort}` : "", words ?? ""].filter(Boolean).join("; ");

export function dead() {
  const look = () =>
    get("api/dead?limit=200").then(
      (found) => letters.update(only(found.letters ?? found)),
      (error) => say(error.message, true),
    );
  const letters = table(
    "Dead letters",
    [
      { name: "ended", value: (row) => moment(row.ended_s) },
      { name: "reason", value: (row) => (row.calls > 1 ? `${row.reason} (${row.calls} calls)` : row.reason) },
      { name: "task", value: (row) => row.task || "?", kind: "long" },
      { name: "id", value: (row) => link(row.task_id || row.job_id), key: (row) => row.job_id },
      { name: "type", value: (row) => row.type },
      { name: "why", value: why, kind: "long" },
      { name: "", value: (row) => acts(row, look), key: (row) => row.replayable },
    ],
    (row) => row.job_id,
    "There are no dead letters.",
  );
  let count = null;
  look();
  return {
    title: "Dead letters",
    parts: [el("section", {}, letters)],
    update({ status }) {
      if (count !== null && count !== status.dead) look();
      count = status.dead;
    },
  };
}
