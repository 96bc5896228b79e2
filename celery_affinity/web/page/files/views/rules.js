// Rules in force: pauses, keys that jobs hold or wait for, and settings that were changed.
import { get } from "../api.js";
import { duration, el, moment, number, table } from "../dom.js";

const LOOK_EVERY_MS = 5000;

export function rules() {
  const pauses = table(
    "Pauses",
    [
      { name: "what", value: (row) => (row.kind === "all" ? "every type" : `${row.kind} ${row.name}`), kind: "long" },
      { name: "since", value: (row) => moment(row.since) },
      { name: "until", value: (row) => (row.until === null ? "resumed by hand" : moment(row.until)) },
      { name: "why", value: (row) => row.why, kind: "long" },
    ],
    (row) => `${row.kind} ${row.name}`,
    "Nothing is paused.",
  );
  const keys = table(
    "Keys",
    [
      { name: "key", value: (row) => row.key, kind: "long" },
      { name: "held", value: (row) => (row.limit === null ? number(row.held) : `${number(row.held)} of ${number(row.limit)}`), kind: "number" },
      { name: "waiting", value: (row) => number(row.waiting), kind: "number" },
      { name: "longest wait", value: (row) => duration(row.oldest_wait_s), kind: "number" },
      { name: "held longest by", value: (row) => (row.holder ? `${row.holder.task}, ${duration(row.holder.held_s)}` : ""), kind: "long" },
    ],
    (row) => row.key,
    "No job holds a key or waits for one.",
  );
  const settings = table(
    "Settings",
    [
      { name: "setting", value: (row) => `affinity_${row.name}`, kind: "long" },
      { name: "in force", value: (row) => String(row.value), kind: "long" },
      { name: "in app.conf", value: (row) => String(row.conf), kind: "long" },
      { name: "note", value: (row) => (row.changed_at_run_time ? "changed at run time" : ""), kind: "note" },
    ],
    (row) => row.name,
    "The settings are unknown.",
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
    ],
    (row) => row.name,
    "There are no recurring calls.",
  );

  async function look() {
    if (document.hidden) return;
    await Promise.allSettled([
      get("api/keys?limit=100").then((found) => keys.update(found.keys ?? found)),
      get("api/settings").then((found) => settings.update([...found].sort((a, b) => b.changed_at_run_time - a.changed_at_run_time))),
      get("api/recurring").then((found) => recurring.update(found)),
    ]);
  }
  look();
  const timer = setInterval(look, LOOK_EVERY_MS);
  return {
    title: "Rules",
    parts: [pauses, keys, recurring, settings].map((each) => el("section", {}, each)),
    update: ({ status }) => pauses.update(status.pauses),
    gone: () => clearInterval(timer),
  };
}
