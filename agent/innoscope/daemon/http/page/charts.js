// The three charts for the last hour, with a shared time axis, cursor and selection.

import { color, onScheme, styled } from "./colors.js";
import { placeEvents } from "./events.js";
import { bytes, clock, number, percent } from "./format.js";

const MIN_SPAN = 600; // minimum length of the time axis in seconds
const ZONES = [
  [7 / 8, 15 / 16, "--zone-async"],
  [15 / 16, 31 / 32, "--zone-sync"],
  [31 / 32, Infinity, "--zone-checkpoint"],
];

export class Charts {
  /**
   * `places` maps names to elements. `heard.cursor` is called with the cursor's time, `heard.selected` after a
   * drag, and `heard.event` with the first and last time of the marks that were clicked.
   */
  constructor(places, heard) {
    this.places = places;
    this.heard = heard;
    this.plots = {};
    this.shape = "";
    this.marked = null;
    this.events = [];
    this.range = [0, 1];
    this.postponed = false;
    onScheme(() => this.redo());
    const watcher = new ResizeObserver(() => this.resize());
    Object.values(places).forEach((place) => watcher.observe(place));
    // uPlot hides the selection after a click without a drag, so it must be shown again.
    document.addEventListener("mouseup", () => requestAnimationFrame(() => this.released()));
  }

  /** Draw the hour with these wait classes, up to the agent's time `end` and at most `keep` seconds back. */
  draw(hour, shown, end, keep) {
    this.drawn = [hour, shown, end, keep];
    if (this.postpones()) return;
    const from = Math.max(end - keep, Math.min(hour.oldest - 30, end - MIN_SPAN));
    this.range = [from, end];
    const data = { threads: stacked(hour.spaced("waits", shown)), ...gauges(hour) };
    const shape = shown.join();
    if (shape !== this.shape || !this.plots.threads) {
      this.plots.threads?.destroy();
      this.plots.threads = this.plot("threads", threadsStyle(shown), data.threads);
      this.shape = shape;
    } else this.plots.threads.setData(data.threads);
    for (const name of ["dirty", "age"]) {
      if (this.plots[name]) this.plots[name].setData(data[name]);
      else this.plots[name] = this.plot(name, name === "dirty" ? dirtyStyle() : ageStyle(), data[name]);
    }
    this.mark(this.marked);
  }

  /** Set the marks to show on the time axis of the first chart from the next redraw on. */
  show(events) {
    this.events = events;
  }

  /** Show the selected time range [from, to], or none (null). */
  mark(times) {
    this.marked = times;
    for (const plot of Object.values(this.plots)) {
      const [from, to] = times ? times.map((time) => plot.valToPos(time, "x")) : [0, 0];
      const left = Math.max(0, from);
      const width = times ? Math.max(0, Math.min(to, plot.over.clientWidth) - left) : 0;
      plot.setSelect({ left, width, top: 0, height: plot.over.clientHeight }, false);
    }
  }

  /** Return whether the user is selecting a time range. If so, the charts will be redrawn after that. */
  postpones() {
    this.postponed = Object.values(this.plots).some((plot) => plot.over.matches(":active"));
    return this.postponed;
  }

  released() {
    if (!this.postponed) this.mark(this.marked);
    else {
      this.resize();
      this.draw(...this.drawn);
    }
  }

  /** Move the cursor to a Unix time; null removes it. */
  point(unix) {
    for (const plot of Object.values(this.plots)) {
      const left = unix === null ? -10 : plot.valToPos(unix, "x");
      plot.setCursor({ left, top: unix === null ? -10 : 1 }, false);
    }
  }

  redo() {
    Object.values(this.plots).forEach((plot) => plot.destroy());
    this.plots = {};
    if (this.drawn) this.draw(...this.drawn);
  }

  resize() {
    if (this.postpones()) return;
    for (const [name, plot] of Object.entries(this.plots)) {
      const size = sized(this.places[name]);
      if (size.width !== plot.width || size.height !== plot.height) plot.setSize(size);
    }
    this.mark(this.marked);
  }

  plot(name, style, data) {
    const place = this.places[name];
    const plot = new uPlot(
      {
        ...sized(place),
        legend: { show: false },
        padding: [8, 8, 0, 0],
        cursor: {
          y: false,
          points: { show: false },
          drag: { x: true, y: false, setScale: false, dist: 3 },
          sync: { key: "hour", setSeries: false, scales: ["x", null] },
        },
        select: { show: true },
        scales: { x: { range: () => this.range }, y: { range: style.range } },
        axes: [
          axis({ values: (_, times) => times.map((time) => clock(time, false)), size: 24, space: 64 }),
          axis({ values: (_, values) => values.map(style.show), size: 58, space: 26, incrs: style.steps }),
        ],
        series: [{}, ...style.series],
        bands: style.bands,
        hooks: {
          drawAxes: style.under ? [style.under] : [],
          draw: name === "threads" ? [(one) => placeEvents(one, this.events, this.heard.event)] : [],
          setCursor: name === "threads" ? [(one) => this.heard.cursor(timeAt(one, one.cursor.left))] : [],
          setSelect: [(one) => this.dragged(one)],
        },
      },
      data,
      place,
    );
    selectByTouch(plot, (one) => this.dragged(one));
    return plot;
  }

  dragged(plot) {
    const { left, width } = plot.select;
    if (width > 0) this.heard.selected(plot.posToVal(left, "x"), plot.posToVal(left + width, "x"));
  }
}

function timeAt(plot, left) {
  return left === undefined || left < 0 ? null : plot.posToVal(left, "x");
}

function sized(place) {
  return { width: Math.max(200, place.clientWidth), height: Math.max(100, place.clientHeight) };
}

function axis(more) {
  return {
    stroke: styled("--dim"),
    font: "11px system-ui, sans-serif",
    gap: 4,
    grid: { stroke: styled("--grid"), width: 1 },
    ticks: { show: false },
    ...more,
  };
}

/** Stack the columns, the first at the bottom. Each series is the upper edge of a column, topmost first. */
function stacked([at, ...columns]) {
  const found = [];
  let below = new Array(at.length).fill(0);
  for (const column of columns) {
    below = column.map((value, index) => (value === null ? null : value + (below[index] ?? 0)));
    found.unshift(below);
  }
  return [at, ...found];
}

function threadsStyle(shown) {
  const series = shown
    .map((wait) => ({
      stroke: color(wait),
      fill: color(wait),
      width: 1,
      points: { show: false },
    }))
    .reverse();
  return {
    series,
    bands: series.slice(1).map((_, index) => ({ series: [index + 1, index + 2] })),
    range: (_, __, most) => [0, Math.max(1, (most ?? 0) * 1.06)],
    show: number,
  };
}

function gauges(hour) {
  return {
    dirty: hour.spaced("gauges", ["buffer_pool_dirty_ratio", "buffer_pool_dirty_limit_ratio"]),
    age: hour.spaced("gauges", ["checkpoint_age_bytes", "checkpoint_age_max_bytes"]),
  };
}

const edge = (name) => ({ stroke: () => styled(name), width: 1.5, points: { show: false } });
const last = (column) => column.findLast((value) => value !== null);
const largest = (column) => column.reduce((most, value) => Math.max(most, value ?? 0), 0);

function dirtyStyle() {
  return {
    series: [
      { ...edge("--dirty"), fill: () => styled("--dirty-fill") },
      { ...edge("--limit"), dash: [5, 4] },
    ],
    // Include the limit in the y axis only if the peak exceeds 30 % of it.
    range: (plot) => {
      const [, ratios, limits] = plot.data;
      const [peak, limit] = [largest(ratios), largest(limits)];
      return [
        0,
        limit && peak > 0.3 * limit ? Math.max(limit * 1.1, peak * 1.1) : Math.max(0.01, peak * 1.3),
      ];
    },
    show: (value) => percent(value, value && value < 0.02 ? 1 : 0),
  };
}

function ageStyle() {
  return {
    series: [
      { ...edge("--age"), fill: () => styled("--age-fill") },
      { ...edge("--limit"), dash: [5, 4] },
    ],
    range: (plot) => {
      const [, ages, mosts] = plot.data;
      const [peak, most] = [largest(ages), largest(mosts)];
      return [0, most && peak > 0.3 * most ? Math.max(most, peak) * 1.05 : Math.max(1024, peak * 1.3)];
    },
    show: (value) => (value ? bytes(value) : "0"),
    steps: Array.from({ length: 50 }, (_, power) => 2 ** power),
    under: zones,
  };
}

/** Draw the visible parts of the checkpoint age zones. */
function zones(plot) {
  const most = last(plot.data[2]);
  if (!most) return;
  const { left, top, width, height } = plot.bbox;
  const { ctx } = plot;
  ctx.save();
  for (const [from, to, name] of ZONES) {
    const low = Math.min(top + height, plot.valToPos(from * most, "y", true));
    const high = to === Infinity ? top : Math.max(top, plot.valToPos(to * most, "y", true));
    if (low <= high) continue;
    ctx.fillStyle = styled(name);
    ctx.fillRect(left, high, width, low - high);
  }
  ctx.restore();
}

/** Let the user select a time range by touch, as with the mouse. Vertical swipes scroll the page (touch-action). */
function selectByTouch(plot, done) {
  let began = null;
  const place = (event) => event.clientX - plot.over.getBoundingClientRect().left;
  plot.over.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch") began = place(event);
  });
  plot.over.addEventListener("pointermove", (event) => {
    if (began === null) return;
    const [left, right] = [began, place(event)].sort((a, b) => a - b);
    plot.setSelect({ left, width: right - left, top: 0, height: plot.over.clientHeight }, false);
  });
  const end = (event) => {
    if (began !== null && event.type === "pointerup" && Math.abs(place(event) - began) > 8) done(plot);
    began = null;
  };
  plot.over.addEventListener("pointerup", end);
  plot.over.addEventListener("pointercancel", end);
}
