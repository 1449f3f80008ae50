// The last hour of one server: merge the agent's responses, and prepare them for the charts.

/** Seconds over which the thread counts of a row are averaged. Intervals without snapshots have no row. */
export const STEP = 10;

export class Hour {
  constructor() {
    this.waits = { at: [], columns: new Map() };
    this.gauges = { at: [], columns: new Map() };
    this.classes = {};
  }

  /** Add a response of /api/history, and drop rows older than `keep` seconds. */
  add(response, keep) {
    this.classes = response.classes;
    append(this.waits, response.waits.at, response.waits.threads, 0);
    append(this.gauges, response.gauges.at, response.gauges.values, null);
    const end = Math.max(this.newest, 0);
    for (const rows of [this.waits, this.gauges]) cut(rows, end - keep);
  }

  /** Return an hour with the gauges of this one, and with the `rows` of /api/sessions as thread counts. */
  narrowed(rows) {
    const found = new Hour();
    Object.assign(found, { gauges: this.gauges, classes: this.classes });
    append(found.waits, rows.at, rows.threads, 0);
    return found;
  }

  /** Unix time of the newest row. */
  get newest() {
    return Math.max(this.waits.at.at(-1) ?? 0, this.gauges.at.at(-1) ?? 0);
  }

  /** Unix time from which to request rows. Thread counts arrive later than gauges; duplicates are skipped. */
  get since() {
    const newest = [this.waits, this.gauges].map((rows) => rows.at.at(-1) ?? 1);
    return Math.min(...newest) - 1;
  }

  /** Unix time of the first row. */
  get oldest() {
    return Math.min(this.waits.at[0] ?? Infinity, this.gauges.at[0] ?? Infinity);
  }

  /** Return the wait classes that occurred, in catalog order. */
  seen() {
    const known = Object.keys(this.classes);
    const place = (wait) => (known.includes(wait) ? known.indexOf(wait) : known.length);
    return [...this.waits.columns.keys()]
      .filter((wait) => this.waits.columns.get(wait).some((value) => value > 0))
      .sort((a, b) => place(a) - place(b));
  }

  label(wait) {
    return this.classes[wait]?.label ?? wait;
  }

  about(wait) {
    return this.classes[wait]?.about ?? "";
  }

  /** Return the number of threads of a wait class as {now, mean, peak}: mean and peak between two Unix times. */
  summary(wait, from, to) {
    const column = this.waits.columns.get(wait) ?? [];
    const inside = (at) => at + STEP > from && at <= to;
    const values = column.filter((_, index) => inside(this.waits.at[index]));
    const sum = values.reduce((total, value) => total + value, 0);
    return {
      now: column.at(-1) ?? 0,
      mean: values.length ? sum / values.length : 0,
      peak: values.reduce((most, value) => Math.max(most, value), 0),
    };
  }

  /** Return the index of the row of thread counts at a Unix time; -1 if it is missing. */
  rowAt(unix) {
    const start = Math.floor(unix / STEP) * STEP;
    return this.waits.at.indexOf(start);
  }

  /** Return the rows' times (for threads, the middle of each step) and the columns, with a row of nulls in each gap. */
  spaced(kind, names) {
    const rows = this[kind];
    const columns = names.map((name) => rows.columns.get(name) ?? []);
    const shift = kind === "waits" ? STEP / 2 : 0;
    const at = [];
    const found = columns.map(() => []);
    rows.at.forEach((time, index) => {
      if (index && time - rows.at[index - 1] > 3.5 * STEP) {
        at.push(rows.at[index - 1] + STEP + shift);
        found.forEach((column) => column.push(null));
      }
      at.push(time + shift);
      found.forEach((column, place) => column.push(columns[place][index] ?? null));
    });
    return [at, ...found];
  }
}

function append(rows, at, columns, missing) {
  const known = rows.at.length;
  const first = at.findIndex((time) => time > (rows.at[known - 1] ?? -Infinity));
  const more = first < 0 ? 0 : at.length - first;
  for (const name of Object.keys(columns)) {
    if (!rows.columns.has(name)) rows.columns.set(name, new Array(known).fill(missing));
  }
  for (let index = at.length - more; index < at.length; index++) {
    rows.at.push(at[index]);
    for (const [name, column] of rows.columns) column.push(columns[name]?.[index] ?? missing);
  }
}

function cut(rows, since) {
  const first = rows.at.findIndex((time) => time >= since);
  if (first <= 0) return;
  rows.at.splice(0, first);
  for (const column of rows.columns.values()) column.splice(0, first);
}
