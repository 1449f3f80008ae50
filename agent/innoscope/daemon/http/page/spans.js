// The time range of the stacks: the last minutes, or a selection in a chart (mouse, touch or keyboard).

import { el, say } from "./dom.js";
import { average, clock, span } from "./format.js";
import { STEP } from "./hour.js";

const LAST = [
  [60, "1 min"],
  [300, "5 min"],
  [900, "15 min"],
  [3600, "1 hour"],
];
const PAUSE_MS = 350; // delay of the request for stacks after the last key press

export class Spans {
  /** `heard.marked` is called while the range changes, `heard.changed` when it is final. */
  constructor(place, heard) {
    this.heard = heard;
    this.last = 300;
    this.times = null;
    this.anchor = null;
    this.cursor = null;
    this.buttons = LAST.map(([seconds, label]) =>
      el(
        "button",
        {
          type: "button",
          "aria-pressed": "false",
          onclick: () => this.follow(seconds),
        },
        el("span", { class: "hidden-text" }, "Last "),
        label,
      ),
    );
    place.append(...this.buttons);
    this.show();
  }

  /** Show the last `seconds`, and keep updating. */
  follow(seconds) {
    [this.last, this.times, this.anchor] = [seconds, null, null];
    this.settle();
  }

  /** Select a fixed range, extended to whole steps. */
  select(from, to, settled = true) {
    const first = Math.floor(from / STEP) * STEP;
    this.times = [first, Math.max(first + STEP, Math.ceil(to / STEP) * STEP)];
    if (settled) this.settle();
    else {
      this.show();
      this.heard.marked(this.times);
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.settle(), PAUSE_MS);
    }
  }

  settle() {
    clearTimeout(this.timer);
    this.show();
    this.heard.marked(this.times);
    this.heard.changed();
  }

  show() {
    this.buttons.forEach((button, index) =>
      button.setAttribute("aria-pressed", String(!this.times && LAST[index][0] === this.last)),
    );
  }

  /** Return [from, to] for a request. The end is excluded: the next step begins there. */
  bounds(now) {
    return this.times ? [this.times[0], this.times[1] - 0.001] : [now - this.last, now];
  }

  /** Return the range as a string, for the page's URL. */
  get text() {
    return this.times ? this.times.join("-") : String(this.last);
  }

  set text(value) {
    const [from, to] = value.split("-").map(Number);
    if (from > 1e9 && to > from) this.times = [from, to];
    else if (LAST.some(([seconds]) => seconds === from)) this.last = from;
    this.show();
  }

  words() {
    if (!this.times) return `the last ${LAST.find(([seconds]) => seconds === this.last)[1]}`;
    const [from, to] = this.times;
    return `${clock(from)} – ${clock(to)} (${span(to - from)})`;
  }

  /** Handle keys on a chart: arrows move the cursor (Shift: select), Enter selects a step, Escape resets. */
  keys(chart, charts, hour, place) {
    chart.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -6, PageDown: 6 }[event.key];
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      if (by) this.step(by * STEP, event.shiftKey, charts, hour());
      else if (event.key === "Home") this.step(-Infinity, event.shiftKey, charts, hour());
      else if (event.key === "End") this.step(Infinity, event.shiftKey, charts, hour());
      else if (event.key === "Enter" && this.cursor !== null)
        this.select(...(this.times ?? [this.cursor, this.cursor]));
      else if (event.key === "Escape") this.follow(this.last);
      else return;
      event.preventDefault();
      say(place, this.spoken(hour()));
    });
    chart.addEventListener("blur", () => {
      this.anchor = null;
      charts.point(null);
    });
  }

  step(by, selecting, charts, hour) {
    const ends = [hour.waits.at[0], hour.waits.at.at(-1)];
    if (ends[0] === undefined) return;
    const from = this.cursor ?? ends[1];
    this.cursor = Math.min(
      ends[1],
      Math.max(ends[0], this.cursor === null && by === -STEP ? from : from + by),
    );
    charts.point(this.cursor + STEP / 2);
    if (!selecting) this.anchor = this.cursor;
    else {
      this.anchor ??= from;
      this.select(Math.min(this.anchor, this.cursor), Math.max(this.anchor, this.cursor) + STEP, false);
    }
  }

  /** Describe the values under the cursor, for screen readers. */
  spoken(hour) {
    if (!this.cursor) return "";
    const row = hour.rowAt(this.cursor);
    const values =
      row < 0
        ? []
        : hour
            .seen()
            .map((wait) => [hour.label(wait), hour.waits.columns.get(wait)[row]])
            .filter(([, value]) => value > 0)
            .sort((a, b) => b[1] - a[1])
            .slice(0, 4)
            .map(([label, value]) => `${label} ${average(value)}`);
    return `${clock(this.cursor)}: ${values.join(", ") || "no data"}`;
  }
}
