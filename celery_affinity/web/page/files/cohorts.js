// The cohort that is looked at: a choice in the header of the page, if the fleet has several.
import { el, fill } from "./dom.js";

// Name in the browser's storage of the chosen cohort.
const CHOSEN = "celery_affinity cohort";

const place = document.getElementById("of-cohort");
const field = place.querySelector("select");
let chosen = localStorage.getItem(CHOSEN) ?? "";
let changed = () => {};

// Types of which news have told -> their cohorts.
const cohortOf = new Map();

export function onChoice(show) {
  changed = show;
  field.addEventListener("change", () => {
    chosen = field.value;
    localStorage.setItem(CHOSEN, chosen);
    show();
  });
}

// In a view that the choice does not change, it cannot be made.
export const counts = (inThisView) => (field.disabled = !inThisView);

// Learns the cohorts of the news, and offers them.
export function learn({ cohorts, status }) {
  for (const each of status.types) cohortOf.set(each.type, each.cohort);
  const names = cohorts.map((each) => each.cohort);
  const isStale = chosen !== "" && !names.includes(chosen); // the cohort of another fleet, or of another day
  if (isStale) chosen = "";
  place.hidden = names.length === 0;
  if ([...field.options].slice(1).map((each) => each.value).join() !== names.join()) {
    fill(field, el("option", { value: "" }, "all"), ...names.map((each) => el("option", { value: each }, each)));
  }
  field.value = chosen;
  if (isStale) changed();
}

// What the query of a request has for the chosen cohort.
export const query = () => (chosen ? { cohort: chosen } : {});

// The rows of the chosen cohort: all, if none is.
export const only = (rows) => (chosen ? rows.filter((each) => each.cohort === chosen) : rows);

export const isOf = (type) => !chosen || cohortOf.get(type) === chosen;

// What the news say of the chosen cohort. "cohorts" stays whole.
export function newsOf(news) {
  if (!chosen) return news;
  const { status, times } = news;
  const its = news.cohorts.find((each) => each.cohort === chosen);
  const down = status.down?.[chosen];
  return {
    ...news,
    next: only(news.next),
    claimed: only(news.claimed),
    times: { ...times, rows: (times?.rows ?? []).filter((each) => isOf(each.type)) },
    status: {
      ...status,
      types: only(status.types),
      workers: only(status.workers),
      tenants: only(status.tenants),
      pauses: only(status.pauses),
      scheduled: its.scheduled,
      dead: its.dead,
      unserved_lists: status.unserved_lists.filter((each) => isOf(each.queue)),
      down: down === undefined ? null : { [chosen]: down },
    },
  };
}
