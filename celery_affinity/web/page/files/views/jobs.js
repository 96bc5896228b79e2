// Lists of jobs by state, type, task, stamp, key and age; all jobs that match are cancelled, moved or prioritised.
import { call, get } from "../api.js";
import { change, say } from "../asking.js";
import { query as ofCohort } from "../cohorts.js";
import { el, fill, link, many, moment, number, table } from "../dom.js";

const STATES = ["", "pending", "scheduled", "claimed", "running", "dead", "done", "failed", "revoked", "expired"];
const FIELDS = [
  ["type", "Type", ""],
  ["task", "Task", "shop.*"],
  ["stamp", "Stamp", "customer=acme"],
  ["key", "Key", "customer:acme"],
  ["minutes", "Older than, minutes", ""],
];
const LIMIT = 100;

// The query of a request for what the form says; null for what is empty.
function query(values, more = {}) {
  const { minutes, ...others } = values;
  const all = { ...others, ...(minutes ? { older_than_s: Number(minutes) * 60 } : {}), ...ofCohort(), ...more };
  return new URLSearchParams(Object.entries(all).filter(([, value]) => value !== "" && value !== null)).toString();
}

// Name in the browser's storage of whether the arguments of jobs are shown.
const ARGUMENTS = "celery_affinity arguments";

const TENANT = "tenant:";
const tenantOf = ({ keys }) => (keys ?? []).filter((key) => key.startsWith(TENANT)).map((key) => key.slice(TENANT.length)).join(", ");

// The orders of the loaded jobs, by name; the first is the order of the server.
const ORDERS = {
  "as listed": null,
  "oldest first": (a, b) => (a.enqueued_s ?? 0) - (b.enqueued_s ?? 0),
  "newest first": (a, b) => (b.enqueued_s ?? 0) - (a.enqueued_s ?? 0),
  "highest priority": (a, b) => (b.priority ?? 0) - (a.priority ?? 0),
  task: (a, b) => (a.task ?? "").localeCompare(b.task ?? ""),
  tenant: (a, b) => tenantOf(a).localeCompare(tenantOf(b)),
  key: (a, b) => (a.keys ?? []).join().localeCompare((b.keys ?? []).join()),
};

const words = (values) =>
  Object.entries({ ...values, ...ofCohort() })
    .filter(([, value]) => value)
    .map(([name, value]) => (name === "minutes" ? `older than ${value} minutes` : `${name} ${value}`))
    .join(", ");

export function jobs(place) {
  let values = Object.fromEntries(new URLSearchParams(place));
  let cursor = null;
  let shown = [];
  let order = "as listed";
  let given = {}; // the arguments of the loaded jobs by job id and name, if they are shown
  let counted = "";
  const asks = el("input", { type: "checkbox", checked: localStorage.getItem(ARGUMENTS) === "shown", onchange: () => (localStorage.setItem(ARGUMENTS, asks.checked ? "shown" : ""), look()) });
  const showsArguments = () => asks.checked && !document.body.classList.contains("blind");
  const argumentsOf = (row) => Object.entries(given[row.job_id] ?? {});
  const list = table(
    "Jobs",
    [
      { name: "task", value: (row) => row.task ?? "?", kind: "long" },
      { name: "id", value: (row) => link(row.id), key: (row) => row.id },
      { name: "state", value: (row) => row.state },
      { name: "type", value: (row) => row.type, kind: "long" },
      { name: "mode", value: (row) => row.mode?.replace("_", " ") ?? "" },
      { name: "priority", value: (row) => String(row.priority ?? ""), kind: "number" },
      { name: "enqueued", value: (row) => moment(row.enqueued_s) },
      { name: "due", value: (row) => (row.paused_until_s ?? row.due_s ? moment(row.paused_until_s ?? row.due_s) : "") },
      { name: "worker", value: (row) => row.worker ?? "", kind: "long" },
      { name: "tenant", value: tenantOf, kind: "long" },
      { name: "key", value: (row) => (row.keys ?? []).filter((key) => !key.startsWith(TENANT)).join(", "), kind: "long" },
      { name: "arguments", value: (row) => argumentsOf(row).map(([name, value]) => `${name}=${value}`).join(", "), kind: "long arguments" },
    ],
    (row) => row.job_id,
    "No job matches.",
  );
  const sorting = el("label", { class: "soft" }, "Order ", el("select", { onchange: (event) => (order = event.target.value, draw()) }, ...Object.keys(ORDERS).map((name) => el("option", { value: name }, name))));
  const counts = table(
    "By the value of an argument",
    [
      { name: "value", value: (row) => el("button", { class: "plain", onclick: () => countAll(`${counted}=${row.value}`) }, row.value || "(empty)"), key: (row) => row.value, kind: "long" },
      { name: "jobs", value: (row) => number(row.jobs), kind: "number" },
    ],
    (row) => row.value,
    "No loaded job has it.",
  );
  const naming = el("select", { onchange: (event) => (counted = event.target.value, draw()) });
  const counting = el("section", { class: "values" }, el("div", { class: "bar" }, el("label", {}, "Count by ", naming), el("span", { class: "soft" }, "The loaded jobs. A click on a value counts all jobs that match.")), counts);
  const about = el("p", { class: "soft" });
  const further = el("button", { onclick: () => look(true) }, "Show more");
  const acts = el("div", { class: "buttons" });

  async function look(more = false) {
    try {
      const found = await get(`api/jobs?${query(values, { limit: LIMIT, cursor: more ? cursor : null, arguments: showsArguments() ? 1 : null })}`);
      given = { ...(more ? given : {}), ...found.arguments };
      shown = more ? [...shown, ...found.jobs] : found.jobs;
      cursor = found.cursor;
      draw();
      fill(about, cursor === null ? `${many(shown.length, "job")} found.` : `The first ${many(shown.length, "job")}; there may be more.`);
      further.hidden = cursor === null;
    } catch (error) {
      if (error.status === 403 && asks.checked) { // before the page knew that its role sees no arguments
        asks.checked = false;
        return look(more);
      }
      say(error.message, true);
    }
  }

  function draw() {
    list.update(ORDERS[order] ? [...shown].sort(ORDERS[order]) : shown);
    const names = [...new Set(shown.flatMap((row) => argumentsOf(row).map(([name]) => name)))].sort();
    list.classList.toggle("no-arguments", !names.length);
    counting.hidden = !names.length;
    if (!names.includes(counted)) counted = names[0] ?? "";
    fill(naming, ...names.map((name) => el("option", { value: name, selected: name === counted }, name)));
    const jobsBy = Map.groupBy(shown.filter((row) => counted in (given[row.job_id] ?? {})), (row) => given[row.job_id][counted]);
    counts.update([...jobsBy].map(([value, rows]) => ({ value, jobs: rows.length })).sort((a, b) => b.jobs - a.jobs).slice(0, 100));
  }

  function countAll(argument) {
    byArgument.elements.argument.value = argument;
    byArgument.requestSubmit();
  }

  // Counts all jobs that match, and of these the jobs with a text in their arguments.
  const byArgument = el(
    "form",
    {
      class: "buttons values",
      onsubmit: async (event) => {
        event.preventDefault();
        const argument = new FormData(byArgument).get("argument").trim();
        try {
          const found = await call("DELETE", `api/jobs?${query(values, { argument, dry_run: 1 })}`);
          say(`${found.more ? "More than " : ""}${many(found.found, "job")} that can be cancelled ${found.found === 1 && !found.more ? "has" : "have"} ${argument} in ${found.found === 1 && !found.more ? "its" : "their"} arguments`);
        } catch (error) {
          say(error.message, true);
        }
      },
    },
    el("label", {}, "Argument ", el("input", { name: "argument", placeholder: "customer=17 or args[0]=17", required: true, maxlength: 200, autocomplete: "off", spellcheck: "false" })),
    el("button", {}, "Count"),
  );

  // What happens to how many jobs, asked before the confirmation. No filter means every job, which no button changes.
  function all(name, title, states, method, more, fields, body) {
    const asked = () => `api/jobs?${query(values, more)}`;
    return change({
      name,
      title,
      fields,
      words: async () => {
        const found = await call(method, `${asked()}&dry_run=1`, method === "PATCH" ? { priority: 0 } : undefined);
        const some = `${found.more ? "More than " : ""}${many(found.found, "job")}`;
        const calls = found.calls > found.found ? ` of ${number(found.calls)} calls` : "";
        return [`${some}${calls} match: ${words(values)}.`, states];
      },
      act: async (given) => {
        let done = 0;
        let warning = "";
        for (;;) {
          const reply = await call(method, asked(), body?.(given));
          done += reply.done;
          warning = reply.warning ? `; ${reply.warning}` : warning;
          if (!reply.more || !reply.done || method === "PATCH") return `${many(done, "job")} done${reply.more ? "; there are more: repeat it for the others" : ""}${warning}`;
          say(`${many(done, "job")} done so far`);
        }
      },
      after: () => look(),
    });
  }

  const runs = values.state === "running";
  const cancel = runs
    ? all("Terminate all that match", "Terminate these runs", "The processes that run them are killed, if the pool supports it. The callers get REVOKED.", "DELETE", { terminate: 1 })
    : all("Cancel all that match", "Cancel these jobs", "None of them will start. Their callers get REVOKED. Running jobs continue.", "DELETE", {});
  const stay = "Jobs that workers have already claimed do not change. The others keep their enqueue time. A retry keeps the change.";
  const priority = [["priority", "Priority, 10 is the highest", { type: "number", required: true, min: 0, max: 10, value: 9 }]];
  const type = [["type", "Type", { required: true, maxlength: 255 }]];
  const movable = runs || values.state === "claimed"
    ? []
    : [
        all("Priority", "Give these jobs another priority", stay, "PATCH", {}, priority, (given) => ({ priority: Number(given.priority) })),
        all("Move", "Move these jobs to another type", `Workers that serve the new type will run them. ${stay}`, "PATCH", {}, type, (given) => ({ type: given.type })),
      ];
  fill(acts, cancel, ...movable);
  const form = el(
    "form",
    {
      class: "filter",
      onsubmit: (event) => {
        event.preventDefault();
        values = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value.trim()]));
        location.hash = `#/jobs/${inAddress(values)}`;
      },
    },
    el("label", {}, "State", el("select", { name: "state" }, ...STATES.map((each) => el("option", { value: each, selected: each === (values.state ?? "") }, each || "any")))),
    ...FIELDS.map(([name, label, placeholder]) => el("label", {}, label, el("input", { name, placeholder, value: values[name] ?? "", autocomplete: "off", spellcheck: "false", ...(name === "minutes" ? { type: "number", min: 0 } : {}) }))),
    el("button", { class: "main" }, "Show"),
  );
  const has = Object.values(values).some((value) => value);
  acts.hidden = !has || ["dead", "done", "failed", "revoked", "expired"].includes(values.state);
  further.hidden = true;
  look();
  return { title: "Jobs", parts: [el("section", {}, form), el("section", {}, el("div", { class: "bar" }, acts, byArgument, sorting, el("label", { class: "soft values" }, asks, " Arguments")), list, about, further), counting] };
}

// The part of the address that has the form's values.
const inAddress = (values) => new URLSearchParams(Object.entries(values).filter(([, value]) => value)).toString();
