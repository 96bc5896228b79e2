// Rules in force: pauses, keys that jobs hold or wait for, and settings that were changed.
import { get } from "../api.js";
import { change } from "../asking.js";
import { only } from "../cohorts.js";
import { duration, el, jobsOf, moment, number, table } from "../dom.js";

const LOOK_EVERY_MS = 5000;

const HINTS = {
  limits: "such as type:pdf=3 customer:*=1 rate:mail:*=100/m",
  reserve: "such as pdf:queued=1: queued jobs leave a slot free; none",
  tenants: "such as acme=max:10,min:2 *=max:20; none",
};

// Groups of settings, by the beginning of the names; and units, by name.
const GROUPS = {
  "limits and reserves": ["limits", "reserve", "key_"],
  tenants: ["tenant", "preemption"],
  "order of jobs": ["priority_", "age_", "rarity", "on_demand_", "target_wait", "stretch"],
  "choice of the worker": ["placement", "sample_size", "locality_"],
  "crashes and requeues": ["worker_timeout", "max_", "requeue_"],
  "what is kept": ["dead_", "keep"],
};
const UNITS = {
  s: ["worker_timeout", "target_wait", "on_demand_age_cap", "requeue_delay_max", "keep", "tenant_half_life", "reserve_patience", "key_patience", "preemption_delay", "preemption_grace", "preemption_exempt"],
  points: ["priority_weight", "rarity_weight", "on_demand_weight", "locality_bonus"],
  "points/s": ["age_weight", "on_demand_age_weight"],
  "%": ["priority_percentage"],
  jobs: ["dead_max", "keep_max"],
  "times the run time": ["stretch"],
};
const groupOf = ({ name }) => Object.keys(GROUPS).find((group) => GROUPS[group].some((start) => name.startsWith(start))) ?? "others";
const unitOf = (name) => Object.keys(UNITS).find((unit) => UNITS[unit].includes(name));
const withUnit = (name, value) => (typeof value === "number" && unitOf(name) ? `${number(value)} ${unitOf(name)}` : String(value));

// Which value wins, and what a reset restores.
function winner(row) {
  const words = [];
  if (row.changed_at_run_time) words.push(`changed at run time: this value wins over app.conf until it is reset to ${withUnit(row.name, row.conf)}`);
  else if (String(row.value) === String(row.default)) words.push("default");
  else words.push(`set in app.conf; the default is ${withUnit(row.name, row.default)}`);
  if (row.disputed) words.push(`this app's app.conf has ${withUnit(row.name, row.own)}: the workers that joined last win`);
  if (row.damaged_s !== null) words.push("it was deleted or overwritten in Redis, and reset by a repair");
  return words.join("; ");
}

const PAUSING = [
  ["reason", "Reason, shown to others", { maxlength: 200 }],
  ["minutes", "Resume by itself after this many minutes (empty: not by itself)", { type: "number", min: 1, max: 5256000 }],
];

// A button that pauses a key, or all types.
function pausing(kind, name, words, after) {
  const what = kind === "all" ? "all types" : `the key ${name}`;
  return change({
    name: kind === "all" ? "Pause all types" : "Pause",
    title: `Pause ${what}`,
    words: [words, "Running jobs continue. Publishing, ETA, expiry and revokes work as always. A restart does not end a pause."],
    fields: PAUSING,
    path: "api/pauses",
    body: ({ reason, minutes }) => ({ kind, name, reason, ...(minutes ? { for_s: Number(minutes) * 60 } : {}) }),
    done: () => `${what}: paused`,
    after,
  });
}

// A button that ends a pause. after(): called when it has ended.
export function resuming(pause, after) {
  const what = pause.kind === "all" ? "all types" : `${pause.kind} ${pause.name}`;
  const jobs = pause.kind === "all" ? "Jobs of all types" : `Jobs of this ${pause.kind}`;
  const others = pause.kind === "all" ? " Types and keys that were paused separately stay paused." : "";
  return change({
    name: "Resume",
    title: `Resume ${what}`,
    words: [`${jobs} start again when slots are free.${others}`],
    method: "DELETE",
    path: `api/pauses?${new URLSearchParams({ kind: pause.kind, name: pause.name })}`,
    done: () => `${what}: resumed`,
    after,
  });
}

function settingOf(row, look) {
  const name = `affinity_${row.name}`;
  const set = change({
    name: "Change",
    title: `Change ${name}`,
    words: [`The new value applies to the whole fleet, from the next claim on, until it is reset to the value of app.conf: ${row.conf}.`],
    fields: [["value", `Value${HINTS[row.name] ? `, ${HINTS[row.name]}` : ""}`, { required: true, value: String(row.value), maxlength: 10000 }]],
    method: "PATCH",
    path: "api/settings",
    body: ({ value }) => ({ [row.name]: value }),
    done: () => `${name} is changed`,
    after: look,
  });
  const reset = change({
    name: "Reset",
    title: `Reset ${name}`,
    words: [`The value of app.conf, ${row.conf}, applies again to the whole fleet, from the next claim on.`],
    method: "PATCH",
    path: "api/settings",
    body: () => ({ [row.name]: null }),
    done: () => `${name} is reset`,
    after: look,
  });
  return el("div", { class: "slots" }, set, row.changed_at_run_time ? reset : null);
}

function recurringOf(row, look) {
  const path = `api/recurring/${encodeURIComponent(row.name)}`;
  const fire = change({ name: "Make now", title: `Make the call ${row.name} now`, words: [`${row.task} is called now. The next call follows ${duration(row.stale_after_s)} after it, unless another one matches.`], path: `${path}/fire`, done: () => `${row.name} is made`, after: look });
  const pause = row.is_suspended
    ? change({ name: "Resume", title: `Resume ${row.name}`, words: ["The call is made again: immediately, if no matching call came during the pause."], path: `${path}/resume`, done: () => `${row.name} is resumed`, after: look })
    : change({ name: "Pause", title: `Pause ${row.name}`, words: ["The call is not made until it is resumed. Matching calls from other sources run as always."], path: `${path}/pause`, done: () => `${row.name} is paused`, after: look });
  return el("div", { class: "slots" }, fire, pause);
}

// Changed settings come first, then the groups, and in a group what is no default.
const order = (a, b) => b.changed_at_run_time - a.changed_at_run_time || a.group.localeCompare(b.group) || (String(a.value) === String(a.default)) - (String(b.value) === String(b.default)) || a.name.localeCompare(b.name);

export function rules() {
  const pauses = table(
    "Pauses",
    [
      { name: "what", value: (row) => (row.kind === "all" ? "all types" : `${row.kind} ${row.name}`), kind: "long" },
      { name: "since", value: (row) => moment(row.since) },
      { name: "until", value: (row) => (row.until === null ? "it is resumed" : moment(row.until)) },
      { name: "why", value: (row) => row.why, kind: "long" },
      { name: "", value: (row) => resuming(row), key: (row) => `${row.kind} ${row.name}` },
    ],
    (row) => `${row.kind} ${row.name}`,
    "Nothing is paused.",
  );
  const keys = table(
    "Keys",
    [
      { name: "key", value: (row) => jobsOf({ key: row.key }, row.key), key: (row) => row.key, kind: "long" },
      { name: "held", value: (row) => (row.limit === null ? number(row.held) : `${number(row.held)} of ${number(row.limit)}`), kind: "number" },
      { name: "waiting", value: (row) => number(row.waiting), kind: "number" },
      { name: "longest wait", value: (row) => duration(row.oldest_wait_s), kind: "number" },
      { name: "held longest by", value: (row) => (row.holder ? `${row.holder.task}, ${duration(row.holder.held_s)}` : ""), kind: "long" },
      { name: "note", value: (row) => (row.paused ? "paused" : ""), kind: "note" },
      { name: "", value: (row) => row.paused ? resuming({ kind: "key", name: row.key }, look) : pausing("key", row.key, `No job of ${row.key} starts until the key is resumed. Waiting now: ${number(row.waiting)}.`, look), key: (row) => `${row.paused} ${row.waiting}` },
    ],
    (row) => `${row.cohort ?? ""} ${row.key}`,
    "No job holds a key or waits for one.",
  );
  const limits = table(
    "Limits of types",
    [
      { name: "type", value: (row) => row.type, kind: "long" },
      { name: "running", value: (row) => `${number(row.running)} of ${number(row.limit)}`, kind: "number" },
      { name: "waiting", value: (row) => number(row.waiting), kind: "number" },
    ],
    (row) => row.type,
    "No type has a limit.",
  );
  const settings = table(
    "Settings",
    [
      { name: "setting", value: (row) => `affinity_${row.name}`, kind: "long" },
      { name: "group", value: groupOf },
      { name: "in force", value: (row) => withUnit(row.name, row.value), kind: "long" },
      { name: "note", value: winner, kind: "note" },
      { name: "", value: (row) => settingOf(row, look), key: (row) => `${row.value} ${row.conf}` },
    ],
    (row) => `${row.cohort ?? ""} ${row.name}`,
    "The settings are not loaded yet.",
  );
  const recurring = table(
    "Recurring calls",
    [
      { name: "name", value: (row) => row.name, kind: "long" },
      { name: "task", value: (row) => row.task, kind: "long" },
      { name: "key", value: (row) => row.merge_key, kind: "long" },
      { name: "every", value: (row) => duration(row.stale_after_s), kind: "number" },
      { name: "last match", value: (row) => (row.matched_ago_s === null ? "–" : `${duration(row.matched_ago_s)} ago`), kind: "number" },
      { name: "fires in", value: (row) => (row.is_suspended ? "paused" : duration(row.fires_in_s)), kind: "number" },
      { name: "", value: (row) => recurringOf(row, look), key: (row) => row.is_suspended },
    ],
    (row) => `${row.cohort ?? ""} ${row.name}`,
    "There are no recurring calls.",
  );

  const shown = new Map();
  let text = "";
  // Shows the rows that have the text of the search.
  function update(list, rows, classOf) {
    if (rows) shown.set(list, [rows, classOf]);
    const [all, classes] = shown.get(list) ?? [[]];
    list.update(all.filter((row) => !text || JSON.stringify(row).toLowerCase().includes(text)), classes);
  }
  const search = el("input", {
    type: "search",
    placeholder: "Search rules: a key, type, setting or value",
    "aria-label": "Search rules",
    oninput: () => {
      text = search.value.trim().toLowerCase();
      for (const list of shown.keys()) update(list);
    },
  });

  const everything = pausing("all", "", "No job of any type starts until all types are resumed here.");

  async function look() {
    if (document.hidden) return;
    await Promise.allSettled([
      get("api/keys?limit=100").then((found) => {
        update(keys, only(found.keys));
        update(limits, only(found.types));
      }),
      get("api/settings").then((found) => update(settings, only(found).map((row) => ({ ...row, group: groupOf(row) })).sort(order), (row) => (row.changed_at_run_time || row.disputed ? "changed" : ""))),
      get("api/recurring").then((found) => update(recurring, only(found))),
    ]);
  }
  look();
  const timer = setInterval(look, LOOK_EVERY_MS);
  return {
    title: "Rules",
    parts: [search, el("section", {}, pauses, el("div", { class: "buttons" }, everything)), ...[keys, limits, recurring, settings].map((each) => el("section", {}, each))],
    update({ status }) {
      update(pauses, status.pauses);
      everything.hidden = status.pauses.some((each) => each.kind === "all");
    },
    gone: () => clearInterval(timer),
  };
}
