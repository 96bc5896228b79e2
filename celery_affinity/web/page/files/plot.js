// Lines along the last quarter of an hour, one for each type.
import { el, fill } from "./dom.js";

const COLOURS = ["#3b7dd8", "#c2791c", "#2f9e6b", "#9a6ee0", "#d0547e", "#1fa0ad", "#8a8f98", "#b0a01f"];
const DASHES = [[], [6, 3], [2, 2], [10, 3, 2, 3]];

// A type has the same line in every plot.
const known = new Map();
function nth(label) {
  if (!known.has(label)) known.set(label, known.size);
  return known.get(label);
}

// Most lines of one plot: the busiest types have their own, the others are one together.
const MAX_LINES = 7;

function ink() {
  const style = getComputedStyle(document.documentElement);
  return { axis: style.getPropertyValue("--soft").trim(), grid: style.getPropertyValue("--line").trim() };
}

// Before a sample that comes after a gap there is a moment of which nothing is known, so that no line leads over the gap.
const withGaps = (samples) => samples.flatMap((each) => (each.gap ? [{ at: each.at - 0.001, types: null }, each] : [each]));

// value: the place in a sample's pair, 0: waiting, 1: running.
export function plot(title, value) {
  const place = el("div", { class: "plot" });
  const root = el("section", {}, el("h2", {}, title), place);
  let made = null;
  let madeFor = "";

  const figure = ({ types }, name) => (types === null ? null : (types[name]?.[value] ?? 0));

  function names(samples) {
    const most = new Map();
    for (const { types } of samples) {
      for (const [name, pair] of Object.entries(types)) most.set(name, Math.max(most.get(name) ?? 0, pair[value] ?? 0));
    }
    const all = [...most].sort((a, b) => b[1] - a[1] || a[0].localeCompare(b[0])).map(([name]) => name);
    return all.length > MAX_LINES ? { own: all.slice(0, MAX_LINES - 1).sort(), others: all.slice(MAX_LINES - 1) } : { own: all.sort(), others: [] };
  }

  function make(own, others, width, data) {
    const { axis, grid } = ink();
    const line = (label) => ({
      label,
      stroke: COLOURS[nth(label) % COLOURS.length],
      dash: DASHES[Math.floor(nth(label) / COLOURS.length) % DASHES.length],
      width: 2,
      points: { show: false },
    });
    const axes = { stroke: axis, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } };
    const labels = others.length ? [...own, `${others.length} others`] : own;
    const clock = (_, ticks, axis, space, step) => ticks.map((at) => new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: step < 60 ? "2-digit" : undefined }));
    made?.destroy();
    fill(place);
    made = new uPlot(
      {
        width,
        height: 210,
        padding: [null, 36, null, null],
        series: [{ value: (_, at) => (at ? new Date(at * 1000).toLocaleTimeString() : "–") }, ...labels.map((label) => line(label))],
        axes: [{ ...axes, values: clock, space: 90 }, { ...axes, size: 52 }],
        scales: { y: { range: (_, low, high) => [0, Math.max(4, high * 1.1)] } },
        cursor: { y: false },
        legend: { live: false },
      },
      data,
      place,
    );
  }

  root.update = (samples) => {
    if (!samples.length) return;
    const { own, others } = names(samples);
    const points = withGaps(samples);
    const data = [points.map((each) => each.at), ...own.map((name) => points.map((each) => figure(each, name)))];
    if (others.length) data.push(points.map((each) => (each.types === null ? null : others.reduce((sum, name) => sum + figure(each, name), 0))));
    const width = place.clientWidth || 600;
    const now = JSON.stringify([own, others.length, width, matchMedia("(prefers-color-scheme: dark)").matches]);
    if (now === madeFor && made) made.setData(data);
    else {
      madeFor = now;
      make(own, others, width, data);
    }
    root.setAttribute("aria-label", `${title}: ${own.map((name) => `${name} ${data[own.indexOf(name) + 1].at(-1)}`).join(", ")}`);
  };
  root.setAttribute("role", "img");
  root.gone = () => made?.destroy();
  return root;
}
