// Lines over time, one for each name.
import { el, fill } from "./dom.js";

const COLOURS = ["#3b7dd8", "#c2791c", "#2f9e6b", "#9a6ee0", "#d0547e", "#1fa0ad", "#8a8f98", "#b0a01f"];
const DASHES = [[], [6, 3], [2, 2], [10, 3, 2, 3]];

// A name has the same line in every plot.
const known = new Map();
function nth(label) {
  if (!known.has(label)) known.set(label, known.size);
  return known.get(label);
}

// Most lines of one plot: the largest have their own, the others are one together.
const MAX_LINES = 7;

function ink() {
  const style = getComputedStyle(document.documentElement);
  return { axis: style.getPropertyValue("--soft").trim(), grid: style.getPropertyValue("--line").trim() };
}

const largest = (values) => values.reduce((most, value) => Math.max(most, value ?? 0), 0);

// The other lines as one: values of the same time are combined with how(a, b).
const together = (lines, how) => lines[0].map((_, place) => lines.map((each) => each[place]).reduce((sum, value) => (value === null ? sum : sum === null ? value : how(sum, value)), null));

// text: how a value reads, such as "1.2 s". how: how the values of further lines are combined. least: the least height of
// the axis. bound: the value at its top, if there is one.
export function plot(title, { text, how = (a, b) => a + b, least = 1, bound = null }) {
  const place = el("div", { class: "plot" });
  const empty = el("p", { class: "soft" });
  const root = el("section", {}, el("h2", {}, title), place, empty);
  let made = null;
  let madeFor = "";

  function make(labels, width, data, isDay) {
    const { axis, grid } = ink();
    const line = (label) => ({
      label,
      stroke: COLOURS[nth(label) % COLOURS.length],
      dash: DASHES[Math.floor(nth(label) / COLOURS.length) % DASHES.length],
      width: 2,
      points: { show: false },
    });
    const axes = { stroke: axis, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
    const format = { weekday: isDay ? "short" : undefined, hour: "2-digit", minute: "2-digit" };
    const clock = (_, ticks, axis, space, step) => ticks.map((at) => new Date(at * 1000).toLocaleTimeString([], { ...format, second: step < 60 ? "2-digit" : undefined }));
    made?.destroy();
    fill(place);
    made = new uPlot(
      {
        width,
        height: 180,
        padding: [null, 46, null, null],
        series: [{ value: (_, at) => (at ? new Date(at * 1000).toLocaleTimeString() : "–") }, ...labels.map(line)],
        axes: [{ ...axes, values: clock, space: isDay ? 130 : 90 }, { ...axes, size: 62, values: (_, ticks) => ticks.map(text) }],
        scales: { y: { range: (_, low, high) => [0, bound ?? Math.max(least, high * 1.1)] } },
        cursor: { y: false },
        legend: { live: false },
      },
      data,
      place,
    );
  }

  // lines: { name: values }. nothing: what the reader is told if there are no values.
  root.update = (at, lines, nothing) => {
    const all = Object.entries(lines).filter(([, values]) => values.some((value) => value !== null));
    empty.textContent = all.length ? "" : nothing;
    place.hidden = all.length === 0;
    all.sort((a, b) => largest(b[1]) - largest(a[1]) || a[0].localeCompare(b[0]));
    const isMany = all.length > MAX_LINES;
    const own = (isMany ? all.slice(0, MAX_LINES - 1) : all).sort((a, b) => a[0].localeCompare(b[0]));
    if (isMany) own.push([`${all.length - own.length} others`, together(all.slice(MAX_LINES - 1).map(([, values]) => values), how)]);
    const labels = own.map(([label]) => label);
    root.setAttribute("aria-label", `${title}: ${own.map(([label, values]) => `${label} ${text(values.findLast((value) => value !== null))}`).join(", ") || nothing}`);
    if (!all.length) return;
    const data = [at, ...own.map(([, values]) => values)];
    const width = place.clientWidth || 600;
    const isDay = at.at(-1) - at[0] > 90_000;
    const now = JSON.stringify([labels, width, isDay, matchMedia("(prefers-color-scheme: dark)").matches]);
    if (now === madeFor && made) made.setData(data);
    else {
      madeFor = now;
      make(labels, width, data, isDay);
    }
  };
  root.setAttribute("role", "img");
  root.gone = () => made?.destroy();
  return root;
}
