// Elements, and figures as people read them. No text ever becomes HTML: names of tasks may hold anything.

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "style") Object.assign(made.style, value); // the policy of the page refuses an attribute
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

export function fill(parent, ...children) {
  parent.replaceChildren(...children.filter((child) => child !== null && child !== undefined && child !== false));
}

// Says words in a live region, with a button after them: a screen reader reads a region whenever it is written, so
// what it says already is not written again.
export function announce(region, words, button = null) {
  if (region.textContent !== words + (button?.textContent ?? "")) fill(region, words, button);
}

// Number of workers: one of several cohorts has a row in each, all under its name.
export const numberOf = (workers) => new Set(workers.map((each) => (each.cohort ? each.name : each.id))).size;

export const number = (value) => (value === null || value === undefined ? "?" : value.toLocaleString("en"));

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 10) return `${Math.max(0, seconds).toFixed(1)} s`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  const minutes = Math.floor(whole / 60);
  if (minutes < 90) return `${minutes} min ${whole % 60} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

export const short = (seconds) => (seconds < 1 ? `${Math.max(1, Math.round(seconds * 1000))} ms` : duration(seconds));

// A time beside an axis, which has little space.
export function tick(seconds) {
  const [value, unit] = seconds < 1 ? [seconds * 1000, "ms"] : seconds < 120 ? [seconds, "s"] : seconds < 7200 ? [seconds / 60, "min"] : [seconds / 3600, "h"];
  return seconds ? `${Number(value.toFixed(1))} ${unit}` : "0 s";
}

export function bytes(value) {
  const [size, unit] = value < 1e9 ? [value / 1e6, "MB"] : [value / 1e9, "GB"];
  return `${size < 10 ? Number(size.toFixed(1)) : Math.round(size)} ${unit}`;
}

// A point in time; of today, only its time.
export function moment(unix_s) {
  if (unix_s === null || unix_s === undefined) return "–";
  const at = new Date(unix_s * 1000);
  return at.toDateString() === new Date().toDateString() ? at.toLocaleTimeString() : at.toLocaleString();
}

export const mode = (on_demand) => (on_demand ? "on demand" : "queued");

export const many = (count, thing) => `${number(count)} ${thing}${count === 1 ? "" : "s"}`;

// A table that is changed in place: rows keep their elements, so focus and selection stay where they are.
// columns: [{ name, value: (row) => text or node, kind: "number" or "", key?: (row) => what a node depends on }]
export function table(caption, columns, keyOf, nothing) {
  const body = el("tbody");
  const head = el("tr", {}, ...columns.map((each) => el("th", { scope: "col", class: each.kind }, each.name)));
  const empty = el("p", { class: "soft" }, nothing);
  const whole = el("table", {}, el("caption", {}, caption), el("thead", {}, head), body);
  const root = el("div", { class: "scroll" }, whole, empty);
  const known = new Map();

  root.update = (rows, classOf = () => "") => {
    const wanted = new Set();
    let place = body.firstChild;
    for (const row of rows) {
      const key = keyOf(row);
      if (wanted.has(key)) continue;
      wanted.add(key);
      let line = known.get(key);
      if (!line) {
        line = { element: el("tr"), cells: columns.map((each) => el("td", { class: each.kind, "data-name": each.name })), was: [] };
        line.element.append(...line.cells);
        known.set(key, line);
      }
      line.element.className = classOf(row);
      columns.forEach((column, nth) => {
        const value = column.value(row);
        const state = column.key ? String(column.key(row)) : value;
        if (line.was[nth] === state && !(state instanceof Node)) return;
        line.was[nth] = state;
        const focused = line.cells[nth].contains(document.activeElement);
        fill(line.cells[nth], value);
        if (focused) line.cells[nth].querySelector("a, button")?.focus();
      });
      if (place === line.element) place = place.nextSibling;
      else body.insertBefore(line.element, place);
    }
    for (const [key, line] of known) {
      if (!wanted.has(key)) {
        line.element.remove();
        known.delete(key);
      }
    }
    whole.classList.toggle("empty", rows.length === 0);
    empty.hidden = rows.length > 0;
  };
  return root;
}

// A link to the list of jobs of which this is so: { type: "pdf" }.
export const jobsOf = (which, text) => el("a", { href: `#/jobs/${new URLSearchParams(which)}` }, text);

// A link to the page of a worker.
export const workerLink = (name) => el("a", { href: `#/worker/${encodeURIComponent(name)}` }, name);

export const link = (id) => el("a", { href: `#/job/${encodeURIComponent(id)}`, class: "id", title: id }, id.length > 13 ? `${id.slice(0, 8)}…` : id);
