// Marks on the time axis: starts and exits of servers, changes by toggles, captured stalls.

import { el } from "./dom.js";
import { clock } from "./format.js";

const SYMBOLS = { started: "▲", exited: "▼", toggle_set: "⚙", toggle_undone: "⚙", stall: "!" };
const NEAR = 18; // marks closer than this many pixels share a button

/** Return a server's marks from /api/status and the stalls from /api/incidents, oldest first. */
export function events(server, incidents) {
  const stalls = incidents.map(({ at, title, finding, trigger }) => ({
    at,
    kind: "stall",
    words: `Captured stall: ${title ?? finding ?? trigger ?? "unknown"}`,
  }));
  return [...(server?.marks ?? []), ...stalls].sort((a, b) => a.at - b.at);
}

/** Place a button on a plot for each group of marks. A click calls `select` with the group's first and last time. */
export function placeEvents(plot, marks, select) {
  let layer = plot.over.querySelector(".events");
  if (!layer) {
    layer = el("div", { class: "events", role: "group", "aria-label": "Marks on the time axis" });
    plot.over.append(layer);
  }
  const width = plot.over.clientWidth;
  layer.style.setProperty("--height", `${plot.over.clientHeight - 8}px`);
  const near = grouped(plot, marks).filter(({ left }) => left >= 0 && left <= width);
  const buttons = near.map(({ left, marks: some }) => button(left, width, some, select));
  const same =
    buttons.length === layer.children.length &&
    buttons.every((one, index) => one.textContent === layer.children[index].textContent);
  if (same) near.forEach(({ left }, index) => (layer.children[index].style.left = `${left}px`));
  else {
    const focused = layer.contains(document.activeElement) ? document.activeElement.dataset.event : null;
    layer.replaceChildren(...buttons);
    buttons.find((one) => one.dataset.event === focused)?.focus();
  }
}

function grouped(plot, marks) {
  const found = [];
  for (const mark of marks) {
    const left = plot.valToPos(mark.at, "x");
    const last = found.at(-1);
    if (last && left - last.left < NEAR) last.marks.push(mark);
    else found.push({ left, marks: [mark] });
  }
  return found;
}

function button(left, width, marks, select) {
  const stop = (event) => event.stopPropagation(); // the chart must neither start a selection nor handle the key
  const lines = marks.map(({ at, words }) => `${clock(at)} ${words}. `);
  const made = el(
    "button",
    {
      type: "button",
      "data-event": `${marks[0].kind} ${marks[0].at}`,
      class: `event ${marks.some(({ kind }) => kind === "stall" || kind === "exited") ? "urgent" : ""}`,
      onmousedown: stop,
      onpointerdown: stop,
      onkeydown: (event) => ["Enter", " "].includes(event.key) && stop(event),
      onclick: () => select(marks[0].at, marks.at(-1).at),
    },
    el("span", { "aria-hidden": "true" }, marks.length > 1 ? String(marks.length) : SYMBOLS[marks[0].kind]),
    el("span", { class: "hidden-text" }, lines.join("")),
    el(
      "span",
      { class: left > width / 2 ? "tip before" : "tip", "aria-hidden": "true" },
      ...lines.map((line) => el("span", {}, line)),
    ),
  );
  made.style.left = `${left}px`;
  return made;
}
