// The fleet at a glance: its health, what waits and what runs, by type, now and over time.
import { change } from "../asking.js";
import { charts } from "../charts.js";
import { announce, duration, el, fill, jobsOf, moment, number, numberOf, short, table } from "../dom.js";

function tile(name, value, bad = false) {
  return el("div", { class: bad ? "tile bad" : "tile" }, el("b", {}, number(value)), name);
}

// A cohort whose server does not answer; its jobs are in none of the tables.
function away(cohort, why) {
  return el("div", { class: "tile bad", title: why }, el("b", {}, "down"), `cohort ${cohort}`);
}

function trend({ trend: found, unserved }, how) {
  const words = `${how} by ${number(Math.abs(found.now - found.before))} in ${duration(found.seconds)}`;
  if (unserved) return words; // of a type without workers the server counts no calls
  return `${words}: ${number(found.published)} published, ${number(found.ended)} ended`;
}

const WHAT = { run: "ran", queued: "waited, queued", on_demand: "waited, on demand" };

// What blocks the jobs of a type.
const WAITS = { key: "a key", quota: "their tenant's quota", "key or quota": "a key or their tenant's quota" };

const BEYOND = {
  refuse: "further calls are refused",
  "drop-oldest": "then the oldest job is dropped",
  "drop-newest": "further calls are dropped",
};

// How full a bounded type is, in words; the same as `celery affinity status` says.
function fullness({ pending, bound }) {
  return `${Math.floor((pending * 100) / bound.most)} % full: ${number(bound.most)} may wait, ${BEYOND[bound.full]}`;
}

// The pause that keeps a type back, in words.
function paused(type, pauses) {
  const of = pauses.filter((each) => each.cohort === type.cohort);
  const its = of.find((each) => each.kind === "type" && each.name === type.type) ?? of.find((each) => each.kind === "all");
  if (!its) return "paused";
  const what = its.kind === "all" ? "paused, as all types are," : "paused";
  return `${what} since ${moment(its.since)}${its.why ? `: ${its.why}` : ""}${its.until === null ? "" : `; until ${moment(its.until)}`}`;
}

export function notes(type, pauses = []) {
  const found = [];
  if (type.cohort) found.push(`cohort ${type.cohort}`);
  if (type.unserved) found.push("✗ no live worker serves it");
  if (type.paused) found.push(paused(type, pauses));
  if (type.bound) found.push(fullness(type));
  if (type.trend?.grows) found.push(trend(type, "grows"));
  if (type.trend?.shrinks) found.push(trend(type, "shrinks"));
  if (type.kept_back) found.push(`${number(type.kept_back)} wait for ${WAITS[type.waits_for] ?? WAITS.key}`);
  if (type.limit === 0) found.push("closed: its limit is 0");
  else if (type.kept_back_by_limit) found.push(`${number(type.kept_back_by_limit)} wait because of its limit: ${number(type.running)} of ${number(type.limit)} run`);
  if (type.kept_back_by_reserves) found.push(`${number(type.kept_back_by_reserves)} wait because of a reserve`);
  for (const each of type.reserves ?? []) found.push(`kept free: ${each.kept} for ${each.for_whom}`);
  return found.join("; ");
}

function waiting_jobs(type) {
  return type.calls > type.pending ? `${number(type.pending)} (${number(type.calls)} calls)` : number(type.pending);
}

function pausing(type) {
  const own = type.pauses.some((each) => each.kind === "type" && each.name === type.type);
  if (type.paused && !own) return el("a", { href: "#/rules" }, "Pauses");
  if (type.paused) {
    return change({
      name: "Resume",
      title: `Resume ${type.type}`,
      words: ["Jobs of this type start again when slots are free."],
      path: `api/types/${encodeURIComponent(type.type)}/resume`,
      done: () => `${type.type} is resumed`,
    });
  }
  return change({
    name: "Pause",
    title: `Pause ${type.type}`,
    words: [
      `No job of ${type.type} starts until the type is resumed. Running jobs continue. Pending now: ${number(type.pending)}.`,
      "Publishing, ETA, expiry and revokes work as always. A restart does not end a pause.",
    ],
    fields: [
      ["reason", "Reason, shown to others", { maxlength: 200 }],
      ["minutes", "Resume by itself after this many minutes (empty: not by itself)", { type: "number", min: 1, max: 5256000 }],
    ],
    path: `api/types/${encodeURIComponent(type.type)}/pause`,
    body: ({ reason, minutes }) => ({ reason, ...(minutes ? { for_s: Number(minutes) * 60 } : {}) }),
    done: ({ warning }) => `${type.type} is paused${warning ? `; ${warning}` : ""}`,
  });
}

// What a tenant may have, and what is promised, in words.
function quota({ minimum, limit, weight }) {
  const most = limit === null ? "any number" : `up to ${number(limit)}`;
  return `${minimum ? `at least ${number(minimum)}, ` : ""}${most}${weight === 1 ? "" : `; weight ${number(weight)}`}`;
}

function bar(percent, mark, words) {
  const parts = [el("i", { style: { width: `${Math.min(100, percent)}%` } }), mark === null ? null : el("b", { style: { left: `${Math.min(100, mark)}%` } })];
  return el("span", { class: "meter", role: "img", "aria-label": words, title: words }, ...parts);
}

// The used part of the tenant's maximum; the mark is its minimum.
function use({ held, limit, minimum }) {
  if (!limit) return "";
  return bar((100 * held) / limit, minimum ? (100 * minimum) / limit : null, `${number(held)} of ${number(limit)} slots`);
}

// The tenant's part of the slots of all tenants; the mark is the part that its weight would give it.
function share({ held, total, weight, weights }) {
  if (!total) return "";
  const part = (100 * held) / total;
  return bar(part, (100 * weight) / weights, `${Math.round(part)} % of the slots of these tenants; ${Math.round((100 * weight) / weights)} % by weight`);
}

function tenantNote(tenant) {
  const where = tenant.cohort ? [`cohort ${tenant.cohort}`] : [];
  if (tenant.is_below_minimum) where.push("below its minimum: its jobs start first");
  else if (tenant.is_at_maximum) where.push("at its maximum");
  return where.join("; ");
}

export function now() {
  const tiles = el("div", { class: "tiles" });
  const types = table(
    "Types",
    [
      { name: "type", value: (row) => jobsOf({ type: row.type }, row.type), key: (row) => row.type, kind: "long" },
      { name: "pending", value: waiting_jobs, kind: "number" },
      { name: "on demand", value: (row) => number(row.on_demand), kind: "number" },
      { name: "longest wait", value: (row) => duration(row.oldest_wait_s), kind: "number" },
      { name: "claimed", value: (row) => number(row.claimed), kind: "number" },
      { name: "slots free", value: (row) => `${number(row.free)} of ${number(row.slots)}`, kind: "number" },
      { name: "note", value: (row) => notes(row, row.pauses), kind: "note" },
      { name: "", value: pausing, key: (row) => `${row.paused} ${row.pending} ${row.pauses.length}` },
    ],
    (row) => row.type,
    "No type has jobs or workers.",
  );
  const tenants = table(
    "Tenants",
    [
      { name: "tenant", value: (row) => (row.name ? jobsOf({ key: `tenant:${row.name}` }, row.name) : "(no tenant)"), key: (row) => row.name, kind: "long" },
      { name: "slots", value: (row) => number(row.held), kind: "number" },
      { name: "use", value: use, key: (row) => `${row.held} ${row.limit} ${row.total}` },
      { name: "share", value: share, key: (row) => `${row.held} ${row.total} ${row.weight} ${row.weights}` },
      { name: "quota", value: quota },
      { name: "waiting", value: (row) => number(row.waiting), kind: "number" },
      { name: "longest wait", value: (row) => duration(row.oldest_wait_s), kind: "number" },
      { name: "note", value: tenantNote, kind: "note" },
    ],
    (row) => `${row.cohort ?? ""} ${row.name}`,
    "No tenant has jobs that wait, or a quota of its own.",
  );
  const cohorts = table(
    "Cohorts",
    [
      { name: "cohort", value: (row) => row.cohort, kind: "long" },
      { name: "pending", value: (row) => number(row.pending), kind: "number" },
      { name: "claimed", value: (row) => number(row.claimed), kind: "number" },
      { name: "scheduled", value: (row) => number(row.scheduled), kind: "number" },
      { name: "dead letters", value: (row) => number(row.dead), kind: "number" },
      { name: "workers", value: (row) => number(row.workers), kind: "number" },
      { name: "slots free", value: (row) => `${number(row.free)} of ${number(row.slots)}`, kind: "number" },
      { name: "note", value: (row) => (row.down === undefined ? "" : `✗ its server does not answer: ${row.down}`), kind: "note" },
    ],
    (row) => row.cohort,
    "The fleet has one cohort.",
  );
  const ofCohorts = el("section", {}, cohorts);
  ofCohorts.hidden = true;
  const ofTenants = el("section", {}, tenants);
  ofTenants.hidden = true;
  const times = table(
    "Waits and run times, last 15 minutes",
    [
      { name: "type", value: (row) => row.type, kind: "long" },
      { name: "jobs", value: (row) => WHAT[row.what] },
      { name: "number", value: (row) => number(row.jobs), kind: "number" },
      { name: "p50", value: (row) => short(row.p50_s), kind: "number" },
      { name: "p95", value: (row) => short(row.p95_s), kind: "number" },
    ],
    (row) => `${row.type} ${row.what}`,
    "No job has started or ended in this time.",
  );
  const headline = el("section", { class: "headline" });
  const history = charts();
  return {
    title: "Now",
    parts: [headline, tiles, ofCohorts, el("section", {}, types), ofTenants, history, el("section", {}, times)],
    update(news) {
      const { status, times: lately, cohorts: each } = news;
      const sum = (name) => status.types.reduce((total, each) => total + (each[name] ?? 0), 0);
      const slow = numberOf(status.workers.filter((each) => each.is_slow || each.stalled));
      const unserved = status.types.filter((each) => each.unserved).length;
      const told = el(
        "div",
        {},
        tile("pending", sum("pending")),
        tile("on demand", sum("on_demand")),
        tile("claimed", sum("claimed")),
        tile("scheduled", status.scheduled),
        tile("workers", numberOf(status.workers), status.workers.length === 0),
        tile("free slots", status.workers.reduce((total, each) => total + each.free, 0)),
        tile("dead letters", status.dead, status.dead > 0),
        slow ? tile(slow === 1 ? "slow worker" : "slow workers", slow, true) : null,
        unserved ? tile("types without a worker", unserved, true) : null,
        ...status.unserved_lists.slice(0, 5).map((each) => tile(`messages in stock list ${each.queue}, which no worker serves`, each.messages, true)),
        ...Object.entries(status.down ?? {}).map(([cohort, why]) => away(cohort, why)),
      );
      if (told.innerHTML !== tiles.innerHTML) fill(tiles, ...told.childNodes); // else who reads them is left in peace
      const order = (a, b) => b.unserved - a.unserved || b.pending - a.pending || a.type.localeCompare(b.type);
      types.update(status.types.map((each) => ({ ...each, pauses: status.pauses })).sort(order), (row) => (row.unserved ? "bad" : ""));
      cohorts.update(each, (row) => (row.down === undefined ? "" : "bad"));
      ofCohorts.hidden = each.length === 0;
      const active = status.tenants.filter((row) => row.held || row.waiting);
      const [total, weights] = [active.reduce((all, row) => all + row.held, 0), Math.max(1, active.reduce((all, row) => all + row.weight, 0))];
      tenants.update(status.tenants.map((row) => ({ ...row, total, weights })), (row) => (row.is_below_minimum ? "bad" : ""));
      ofTenants.hidden = status.tenants.length === 0;
      times.update([...(lately?.rows ?? [])].sort((a, b) => a.type.localeCompare(b.type)), () => "");
      announce(headline, status.headline.text);
      headline.className = `headline ${status.headline.level}`;
      history.update(news);
    },
    gone: history.gone,
  };
}
