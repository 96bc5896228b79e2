// Dead letters: why they are there, by reason and task; to have them run again, or forgotten, one by one or all of a group.
import { call, get } from "../api.js";
import { change, changeEach, say } from "../asking.js";
import { only } from "../cohorts.js";
import { el, fill, link, many, moment, number, table } from "../dom.js";

const MOST = 1000;
const SHOWN = 200;

function acts(letter, look) {
  const id = encodeURIComponent(letter.job_id);
  const replay = change({
    name: "Run again",
    title: `Run ${letter.task} again`,
    words: ["The job is published again with the same arguments, as a new job. Deliveries count from 0."],
    path: `api/dead/${id}/replay`,
    done: () => `${letter.task} is pending again`,
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

const each = (name, title, words, letters, method, path, look) =>
  changeEach("dead letter", letters, (letter) => call(method, path(encodeURIComponent(letter.job_id))), { name, title, words: [words], after: look });

function actsOfAll(letters, look) {
  const replayable = letters.filter((letter) => letter.replayable);
  const lost = letters.some((letter) => letter.reason === "lost") ? " Lost jobs may have done their work before their worker died." : "";
  const what = many(letters.length, "dead letter");
  return el(
    "div",
    { class: "slots" },
    replayable.length ? each("Run again", `Run ${many(replayable.length, "job")} again`, `The jobs are published again with the same arguments, as new jobs.${lost}`, replayable, "POST", (id) => `api/dead/${id}/replay`, look) : null,
    each("Delete", `Delete ${what}`, "The dead letters and their messages are deleted. This cannot be undone.", letters, "DELETE", (id) => `api/dead/${id}`, look),
  );
}

const why = ({ cohort, why: words }) => [cohort ? `cohort ${cohort}` : "", words ?? ""].filter(Boolean).join("; ");

export function dead() {
  let all = [];
  let isAll = true;
  const filter = { reason: "", task: "", type: "" };
  const about = el("p", { class: "soft" });
  const fields = Object.keys(filter).map((name) => el("label", {}, name[0].toUpperCase() + name.slice(1), el("select", { name, onchange: (event) => choose(name, event.target.value) })));
  const form = el("div", { class: "filter" }, ...fields);

  const groups = table(
    "By reason and task",
    [
      { name: "reason", value: (row) => row.reason },
      { name: "task", value: (row) => el("button", { class: "plain", onclick: () => pick(row) }, row.task || "?"), key: (row) => row.task, kind: "long" },
      { name: "number", value: (row) => number(row.letters.length), kind: "number" },
      { name: "newest", value: (row) => moment(row.letters[0].ended_s) },
      { name: "why", value: (row) => why(row.letters[0]), kind: "long" },
      { name: "", value: (row) => actsOfAll(row.letters, look), key: (row) => row.letters.map((letter) => letter.job_id).join() },
    ],
    (row) => `${row.reason} ${row.task}`,
    "There are no dead letters.",
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
    "No dead letter matches.",
  );

  function choose(name, value) {
    filter[name] = value;
    draw();
  }

  function pick({ reason, task }) {
    Object.assign(filter, { reason, task, type: "" });
    draw();
    letters.scrollIntoView();
  }

  function draw() {
    for (const field of fields) {
      const select = field.querySelector("select");
      const values = [...new Set(all.map((letter) => letter[select.name]))].sort();
      if ([...select.options].slice(1).map((option) => option.value).join("\n") !== values.join("\n")) {
        fill(select, el("option", { value: "" }, "any"), ...values.map((value) => el("option", { value }, value)));
      }
      if (!values.includes(filter[select.name])) filter[select.name] = "";
      select.value = filter[select.name];
    }
    const matching = all.filter((letter) => Object.entries(filter).every(([name, value]) => !value || letter[name] === value));
    const byGroup = Map.groupBy(matching, (letter) => `${letter.reason} ${letter.task}`);
    groups.update([...byGroup.values()].map((group) => ({ reason: group[0].reason, task: group[0].task, letters: group })).sort((a, b) => b.letters.length - a.letters.length));
    letters.update(matching.slice(0, SHOWN));
    fill(about, matching.length > SHOWN ? `The newest ${number(SHOWN)} of ${many(matching.length, "dead letter")}.` : "", isAll ? "" : ` Only the newest ${number(MOST)} are loaded: repeat an action for the others.`);
  }

  const look = () =>
    get(`api/dead?limit=${MOST}`).then(
      (found) => {
        all = only(found.letters ?? found);
        isAll = all.length < MOST;
        draw();
      },
      (error) => say(error.message, true),
    );
  let count = null;
  look();
  return {
    title: "Dead letters",
    parts: [el("section", {}, form), el("section", {}, groups), el("section", {}, letters, about)],
    update({ status }) {
      if (count !== null && count !== status.dead) look();
      count = status.dead;
    },
  };
}
