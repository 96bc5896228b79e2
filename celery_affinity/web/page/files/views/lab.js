// The lab: the last recording, its replay, and sliders that ask what other slots and limits would change.
import { call, get } from "../api.js";
import { announce, duration, el, fill, many, mode, number, table } from "../dom.js";

const HOW = "celery affinity lab record --for 10m --output DIR/trace.jsonl";

// Time, ms, for which a slider rests before the server is asked.
const REST_MS = 300;

// Most rows of who gains, and of who loses; most tenants.
const MAX_ROWS = 5;
const MAX_TENANTS = 10;

// Smallest change of a mean wait that makes a row, s.
const NOTICED_S = 0.001;

const short = (seconds) => (seconds !== null && seconds !== undefined && seconds < 1 ? `${Math.round(seconds * 1000)} ms` : duration(seconds));

// A time as the browser writes it; as it came if it is none.
const date = (text) => (Number.isNaN(Date.parse(text)) ? text ?? "–" : new Date(text).toLocaleString());

const profile = (types) => `[${types.join(",")}]`;

// "25.7 s → 2 min 30 s ▲": what changes, in words for those who do not see the mark.
function change(before, after, text = short) {
  if (after === undefined || text(before) === text(after)) return text(before);
  const longer = after === null || (before !== null && after > before);
  return el("span", {}, `${text(before)} → ${text(after)} `, el("span", { class: longer ? "worse" : "better" }, el("span", { "aria-hidden": "true" }, longer ? "▲" : "▼"), el("span", { class: "hidden" }, longer ? "longer" : "shorter")));
}

// A slider under its label, which assistive technology calls by name, with its value in words beside it; moved() when somebody moves it.
function slider(label, name, { min, max, start, words }, moved) {
  const value = el("output", {}, words(start));
  const input = el("input", { type: "range", min, max, value: start, "aria-label": name, "aria-valuetext": words(start) });
  const root = el("label", { class: "slider" }, el("span", {}, label), value, input);
  const tell = () => {
    fill(value, words(Number(input.value)));
    input.setAttribute("aria-valuetext", words(Number(input.value)));
    root.classList.toggle("moved", Number(input.value) !== start);
  };
  input.addEventListener("input", () => {
    tell();
    moved();
  });
  return {
    root,
    get value() {
      return Number(input.value);
    },
    get isMoved() {
      return Number(input.value) !== start;
    },
    reset() {
      input.value = start;
      tell();
    },
  };
}

// Workers to add, and to remove, so that these members have so many slots.
function slotsAs(members, wanted) {
  if (wanted >= members.slots) return { add: [`${profile(members.types)}:${wanted - members.slots}`], remove: [] };
  let left = members.slots;
  const remove = [];
  for (const [name, slots] of Object.entries(members.workers)) {
    if (left <= wanted) break;
    left -= slots;
    remove.push(name);
  }
  return { add: left < wanted ? [`${profile(members.types)}:${wanted - left}`] : [], remove };
}

// The sliders of a trace. asked(question) with what they say, null if they are as recorded.
function controls({ fleet, limits, replay }, asked) {
  const moved = () => asked(question());
  const slots = fleet.map((members) => ({
    members,
    at: slider(
      profile(members.types),
      `Slots of ${profile(members.types)}`,
      { min: members.stays ? 0 : members.slots, max: Math.max(members.slots * 3, members.slots + 8), start: members.slots, words: (count) => many(count, "slot") },
      moved,
    ),
  }));
  const types = Object.keys(replay.recorded.types).map((type) => {
    const serving = fleet.filter((each) => each.types.includes(type)).reduce((sum, each) => sum + each.slots, 0);
    const none = Math.max(serving, limits[type] ?? 0) + 1; // the last place of the slider: no limit
    return { type, none, at: slider(type, `Limit of ${type}`, { min: 0, max: none, start: limits[type] ?? none, words: (limit) => (limit === none ? "no limit" : `${number(limit)} at once`) }, moved) };
  });
  const every = [...slots, ...types];
  function question() {
    if (!every.some((each) => each.at.isMoved)) return null;
    const found = { add: [], remove: [], set: {} };
    for (const { members, at } of slots.filter((each) => each.at.isMoved)) {
      const { add, remove } = slotsAs(members, at.value);
      found.add.push(...add);
      found.remove.push(...remove);
    }
    for (const { type, none, at } of types.filter((each) => each.at.isMoved)) found.set[`limits.type:${type}`] = at.value === none ? "none" : String(at.value);
    return found;
  }
  const reset = () => {
    for (const each of every) each.at.reset();
    moved();
  };
  const moves = fleet.some((each) => !each.stays);
  return el(
    "section",
    { class: "sliders" },
    el("h2", {}, "What if?"),
    el("fieldset", {}, el("legend", {}, "Slots of workers that serve"), ...slots.map((each) => each.at.root)),
    moves && el("p", { class: "soft" }, "Slots of workers that joined or left during the recording can only be added, not removed."),
    el("fieldset", {}, el("legend", {}, "Limit of jobs that run together, by type"), ...types.map((each) => each.at.root)),
    el("div", { class: "buttons" }, el("button", { type: "button", onclick: reset }, "As recorded")),
  );
}

// What was recorded beside what was replayed, of the jobs that were claimed in the record.
function waitsTable() {
  return table(
    "Waits",
    [
      { name: "jobs of", value: (row) => row.name, kind: "long" },
      { name: "jobs", value: (row) => number(row.before.jobs + row.before.unclaimed), kind: "number" },
      { name: "p50 recorded", value: (row) => short(row.before.p50_s), kind: "number" },
      { name: "p50 replayed", value: (row) => short(row.after.p50_s), kind: "number" },
      { name: "p95 recorded", value: (row) => short(row.before.p95_s), kind: "number" },
      { name: "p95 replayed", value: (row) => short(row.after.p95_s), kind: "number" },
      { name: "not compared", value: (row) => number(row.before.unclaimed), kind: "number" },
    ],
    (row) => row.key,
    "No jobs.",
  );
}

// Without and with the change, of all jobs: each of them is claimed in the end, if it ever can be.
function changeTable() {
  const pair = (name, text) => ({ value: (row) => change(row.before[name], row.after[name], text), key: (row) => `${row.before[name]} ${row.after[name]}`, kind: "number" });
  return table(
    "With the change",
    [
      { name: "jobs of", value: (row) => row.name, kind: "long" },
      { name: "jobs", value: (row) => number(row.before.jobs + row.before.unclaimed), kind: "number" },
      { name: "p50", ...pair("p50_s") },
      { name: "p95", ...pair("p95_s") },
      { name: "never started", ...pair("unclaimed", number) },
    ],
    (row) => row.key,
    "Move a slider.",
  );
}

const NOTHING = { jobs: 0, unclaimed: 0, p50_s: null, p95_s: null };

function waitRows(before, after) {
  const row = (key, name, of) => ({ key, name, before: of(before) ?? NOTHING, after: of(after) ?? NOTHING });
  const size = (kind, name) => before[kind][name].jobs + before[kind][name].unclaimed;
  const names = (kind) => Object.keys(before[kind]);
  const tenants = names("tenants").sort((a, b) => size("tenants", b) - size("tenants", a)).slice(0, MAX_TENANTS);
  const rows = (kind, shown = names(kind), prefix = "") => shown.map((name) => row(`${kind} ${name}`, prefix + name, (report) => report[kind][name]));
  return [row("all", "all", (report) => report.all), ...rows("types"), ...rows("modes"), ...rows("tenants", tenants, "tenant ")];
}

const share = (value) => (value === undefined ? "–" : `${Math.round(value * 100)} %`);

function useTable() {
  return table(
    "Slots",
    [
      { name: "workers for", value: (row) => row.types.join(", "), kind: "long" },
      { name: "slots", value: (row) => row.slots, kind: "number" },
      { name: "busy", value: (row) => row.busy, kind: "number" },
    ],
    (row) => row.types.join(),
    "No workers.",
  );
}

// The number of slots is that at once, while the reports add up workers that followed one another.
function useRows(fleet, before, after) {
  const byTypes = (uses) => new Map(uses.map((each) => [each.types.join(), each]));
  const [ours, theirs, members] = [byTypes(before), byTypes(after ?? before), byTypes(fleet)];
  const pair = (one, other) => (one === other ? one : `${one} → ${other}`);
  return [...new Map([...ours, ...theirs]).values()].map(({ types }) => {
    const [one, other] = [ours.get(types.join()), theirs.get(types.join())];
    const slots = members.get(types.join())?.slots ?? 0;
    return { types, slots: pair(number(slots), number(slots + (other?.slots ?? 0) - (one?.slots ?? 0))), busy: pair(share(one?.share), share(other?.share)) };
  });
}

function gainsTable() {
  return table(
    "Who gains, and who loses",
    [
      { name: "jobs of", value: (row) => row.type, kind: "long" },
      { name: "mode", value: (row) => mode(row.on_demand) },
      { name: "tenant", value: (row) => row.tenant ?? "", kind: "long" },
      { name: "mean wait", value: (row) => change(row.before.mean_s, row.after.mean_s), key: (row) => `${row.before.mean_s} ${row.after.mean_s}`, kind: "number" },
      { name: "wait less", value: (row) => number(row.shorter), kind: "number" },
      { name: "wait longer", value: (row) => number(row.longer), kind: "number" },
    ],
    (row) => [row.type, row.on_demand, row.tenant].join(),
    "Move a slider.",
  );
}

function gainRows(gains) {
  const gaining = gains.filter((each) => each.mean_s >= NOTICED_S).slice(0, MAX_ROWS);
  const losing = gains.filter((each) => each.mean_s <= -NOTICED_S).slice(-MAX_ROWS);
  return [...gaining, ...losing];
}

function about(found, file) {
  const { replay } = found;
  const facts = [
    found.recorded_at ? ["recorded", date(found.recorded_at)] : ["written", date(file?.modified_at)],
    ["for", duration(found.length_s)],
    ["jobs", number(found.jobs)],
    ["fidelity", `${(replay.fidelity * 100).toFixed(2)} %: ${number(replay.kept)} of ${many(replay.claims, "claim")} are replayed in the recorded order, on the recorded types`],
  ];
  if (replay.claims && (replay.still_waiting || replay.still_waiting_replayed)) {
    facts.push(["still waiting", `${many(replay.still_waiting, "job")} as the recording ended, ${number(replay.still_waiting_replayed)} in the replay; waits are of the jobs claimed in the recording`]);
  }
  if (found.lost) facts.push(["lost", `${many(found.lost, "claim")} could not be recorded`]);
  return el("dl", {}, ...facts.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]));
}

export function lab(place) {
  const root = el("div", { class: "lab" }, el("section", {}, el("h2", {}, "The lab"), el("p", { class: "soft", role: "status" }, "The last recording is replayed …")));
  const status = el("p", { class: "soft", role: "status" });
  let timer;
  let isGone = false;
  let isAsking = false;
  let next; // the question to ask once the last one is answered

  function say(...words) {
    fill(root, el("section", {}, el("h2", {}, "The lab"), ...words));
  }

  function choice(traces, name) {
    const options = traces.map((each) => el("option", { value: each.name, selected: each.name === name }, each.name));
    return el("label", { class: "choice" }, "Recording ", el("select", { onchange: (event) => (location.hash = `#/lab/${encodeURIComponent(event.target.value)}`) }, ...options));
  }

  function show(traces, found) {
    const { recorded, replayed, engine } = found.replay;
    const [waits, changed, use, gains] = [waitsTable(), changeTable(), useTable(), gainsTable()];
    const update = (answer) => {
      changed.update(answer ? waitRows(answer.before, answer.after) : []);
      use.update(useRows(found.fleet, (answer?.before ?? replayed).slots, answer?.after.slots));
      gains.update(gainRows(answer?.gains ?? []));
    };
    async function ask() {
      if (isAsking) return; // whoever answers looks for what is next
      isAsking = true;
      while (next !== undefined && !isGone) {
        const question = next;
        next = undefined;
        try {
          if (question !== null) announce(status, "Computing …");
          const answer = question && (await call("POST", `api/lab/traces/${encodeURIComponent(found.name)}/whatif`, question));
          if (next !== undefined) continue; // the slider is elsewhere by now
          update(answer);
          announce(status, answer ? `All jobs: p95 ${short(answer.before.all.p95_s)} → ${short(answer.after.all.p95_s)}` : "As recorded: move a slider.");
        } catch (error) {
          announce(status, error.message);
        }
      }
      isAsking = false;
    }
    const asked = (question) => {
      clearTimeout(timer);
      timer = setTimeout(() => {
        next = question;
        ask();
      }, REST_MS);
    };
    waits.update(waitRows(recorded, replayed));
    update(null);
    announce(status, "As recorded: move a slider.");
    fill(
      root,
      el("section", { class: "wide" }, el("h2", {}, "The lab"), traces.length > 1 && choice(traces, found.name), about(found, traces.find((each) => each.name === found.name))),
      controls(found, asked),
      el("div", { class: "found" }, el("section", {}, waits, el("p", { class: "soft" }, `Half of the jobs waited no longer than p50, 95 % no longer than p95. Engine: ${engine}.`)), el("section", {}, status, changed), el("section", {}, use), el("section", {}, gains)),
    );
  }

  async function look() {
    try {
      const traces = await get("api/lab/traces");
      if (!traces.length) {
        say(el("p", {}, "There is no recording yet: record with ", el("code", {}, HOW), "."));
        return;
      }
      const name = place || traces[0].name;
      const found = await get(`api/lab/traces/${encodeURIComponent(name)}/replay`);
      if (!isGone) show(traces, found);
    } catch (error) {
      say(el("p", {}, `${error.message}.`));
    }
  }

  look();
  return {
    title: "Lab",
    parts: [root],
    gone() {
      isGone = true;
      clearTimeout(timer);
    },
  };
}
