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
      { name: "in force", value: (row) => String(row.value), kind: "long" },
      { name: "in app.conf", value: (row) => String(row.conf), kind: "long" },
      { name: "note", value: (row) => (row.changed_at_run_time ? "changed at run time" : ""), kind: "note" },
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

  const everything = pausing("all", "", "No job of any type starts until all types are resumed here.");

  async function look() {
    if (document.hidden) return;
    await Promise.allSettled([
      get("api/keys?limit=100").then((found) => {
        keys.update(only(found.keys));
        limits.update(only(found.types));
      }),
      get("api/settings").then((found) => settings.update([...only(found)].sort((a, b) => b.changed_at_run_time - a.changed_at_run_time))),
      get("api/recurring").then((found) => recurring.update(only(found))),
    ]);
  }
  look();
  const timer = setInterval(look, LOOK_EVERY_MS);
  return {
    title: "Rules",
    parts: [el("section", {}, pauses, el("div", { class: "buttons" }, everything)), ...[keys, limits, recurring, settings].map((each) => el("section", {}, each))],
    update({ status }) {
      pauses.update(status.pauses);
      everything.hidden = status.pauses.some((each) => each.kind === "all");
    },
    gone: () => clearInterval(timer),
  };
}
