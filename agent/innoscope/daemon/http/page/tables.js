// The tables of the live page.

import { IDLE, color } from "./colors.js";
import { el, fill, table } from "./dom.js";
import { average, moment, number, percent, span } from "./format.js";

const STACKS = 20; // number of stacks shown initially, and added by each click on the button

const swatch = (wait) => {
  const made = el("span", { class: "swatch", "aria-hidden": "true" });
  made.style.background = color(wait);
  return made;
};

/** Show the wait classes between two times. A click on a class filters by it. `row` is the row at the cursor, or -1. */
export function classes(place, hour, filter, [from, to], row, heading) {
  const rows = hour
    .seen()
    .map((wait) => ({ wait, ...hour.summary(wait, from, to) }))
    .sort((a, b) => IDLE.has(a.wait) - IDLE.has(b.wait) || b.mean - a.mean)
    .map(({ wait, now, mean, peak }) => [
      el(
        "button",
        {
          type: "button",
          class: "class",
          "aria-pressed": String(filter.wait === wait),
          title: hour.about(wait),
          "data-wait": wait,
          onclick: () => filter.toggleWait(wait),
        },
        swatch(wait),
        hour.label(wait),
      ),
      average(row < 0 ? now : (hour.waits.columns.get(wait)[row] ?? 0)),
      average(mean),
      average(peak),
    ]);
  fill(
    place,
    rows.length
      ? table("Threads by wait class", ["Class", `n:${heading}`, "n:Mean", "n:Peak"], rows)
      : el(
          "p",
          { class: "dim" },
          filter.digest
            ? "No samples of this statement."
            : "No stacks yet. The first ones appear after 10 seconds; failures are listed under Collectors.",
        ),
  );
}

/** Show all servers of the agent, with the chosen one highlighted. */
export function fleet(place, servers, chosen, label, choose) {
  const rows = servers.map((server) => {
    const { now } = server;
    const known = Object.keys(server.threads).length > 0;
    const busy = Object.entries(server.threads)
      .filter(([wait]) => !IDLE.has(wait))
      .sort((a, b) => b[1] - a[1]);
    const failing = server.collectors.filter((one) => !one.ok).length;
    return el(
      "tr",
      { class: server.name === chosen ? "chosen" : undefined },
      el(
        "th",
        { scope: "row" },
        el(
          "button",
          {
            type: "button",
            class: "link",
            "aria-current": server.name === chosen ? "true" : undefined,
            onclick: () => choose(server.name),
          },
          server.name,
        ),
      ),
      el("td", {}, server.what),
      el("td", {}, up(server)),
      el("td", { class: "n" }, known ? number(busy.reduce((sum, [, count]) => sum + count, 0)) : "–"),
      el(
        "td",
        {},
        ...(busy.length ? [swatch(busy[0][0]), `${label(busy[0][0])} ${number(busy[0][1])}`] : ["–"]),
      ),
      el("td", { class: "n" }, percent(now.buffer_pool_dirty_ratio)),
      el("td", { class: "n" }, percent(now.checkpoint_age_ratio)),
      el(
        "td",
        {},
        failing ? el("span", { class: "bad" }, `${failing} failing`) : el("span", { class: "good" }, "ok"),
      ),
    );
  });
  fill(
    place,
    table(
      "Servers",
      [
        "Server",
        "Process",
        "State",
        "n:Busy threads",
        "Top wait",
        "n:Dirty pages",
        "n:Checkpoint age",
        "Collectors",
      ],
      rows,
    ),
  );
}

/** Describe the state of the server's process. */
export function up(server) {
  if (server.up === null) return el("span", { class: "dim" }, "on another host");
  if (!server.up) return el("span", { class: "bad" }, "ended");
  if (server.now.mysqld_stopped) return el("span", { class: "bad" }, "stopped");
  return el("span", { class: "good" }, "up");
}

/** Show the most frequent stacks of a time range. */
export function stacks(place, profile, hidden, label, most = STACKS) {
  const shown = profile.stacks.filter(([wait]) => !hidden.has(profile.waits[wait]));
  const total = shown.reduce((sum, [, threads]) => sum + threads, 0) || 1;
  const rows = shown.slice(0, most).map(([wait, threads, mark, ...frames]) => {
    const id = profile.waits[wait];
    const bar = el("span", { class: "share", "aria-hidden": "true" });
    bar.style.width = `${(100 * threads) / shown[0][1]}%`;
    bar.style.background = color(id);
    return el(
      "li",
      {},
      el(
        "span",
        { class: "n" },
        average(threads / Math.max(1, profile.looks)),
        el("span", { class: "hidden-text" }, " threads,"),
      ),
      el("span", { class: "n dim" }, percent(threads / total)),
      bar,
      el("span", { class: "class" }, swatch(id), label(id)),
      stack(
        frames.map((name) => profile.names[name]),
        mark,
      ),
    );
  });
  const rest = shown.length - rows.length;
  fill(
    place,
    rows.length
      ? el("ol", { class: "stacks" }, ...rows)
      : el(
          "p",
          { class: "dim" },
          profile.threads
            ? "All threads are in hidden classes: select idle threads to see those that wait for work."
            : "No snapshots in this time range.",
        ),
    rest > 0
      ? el(
          "button",
          { type: "button", onclick: () => stacks(place, profile, hidden, label, most + STACKS) },
          `${number(rest)} more`,
        )
      : null,
  );
}

/** Show a stack on one line that unfolds to all its functions. */
function stack(names, mark) {
  const marked = mark ? el("span", { class: "mark" }, `[${mark}] `) : null;
  if (!names.length) return el("code", {}, marked, "[no frames]");
  return el(
    "details",
    {},
    el("summary", {}, el("code", {}, marked, names.slice(0, 24).join(" ‹ "))),
    el("ol", {}, ...names.map((name) => el("li", {}, el("code", {}, name)))),
  );
}

const STATES = { attached: "good", sampled: "good", off: "bad", refused: "bad", missing: "dim" };

/** Show the status of each probe, the most expensive first. */
export function probes(place, reports) {
  const rows = [...reports]
    .sort((a, b) => b.cost_ratio - a.cost_ratio || b.hits - a.hits || a.probe.localeCompare(b.probe))
    .map((one) => [
      one.probe,
      el("span", { class: STATES[one.state] ?? "dim" }, one.state),
      number(one.hits_per_second),
      percent(one.cost_ratio, 3),
      percent(one.duty, 0),
      [one.reason, one.remedy, one.note].filter(Boolean).join(" · ") || one.symbols.join(", "),
    ]);
  fill(
    place,
    rows.length
      ? table("Probes", ["Probe", "State", "n:Hits/s", "n:Cost", "n:Duty", "Functions, or reason"], rows)
      : el("p", { class: "dim" }, "No probes on this server; see Collectors for the reason."),
  );
}

/** Show the `innoscope toggle` changes that are in force. */
export function toggles(place, server, now) {
  const rows = server.toggles.map((one) => [
    one.toggle,
    one.value,
    one.way,
    one.who,
    one.since === null ? "–" : moment(one.since),
    one.until === null ? "until undone" : one.until > now ? `in ${span(one.until - now)}` : "overdue",
  ]);
  const unfinished = server.now.toggle_unfinished_changes;
  fill(
    place,
    rows.length
      ? table("Toggles in force", ["Toggle", "Value", "Backend", "User", "Since", "Undone"], rows)
      : el("p", { class: "dim" }, "None: no changes by innoscope toggle."),
    unfinished
      ? el("p", { class: "bad" }, `${unfinished} unfinished: see innoscope toggle history.`)
      : null,
  );
}

/** Show the state of each collector, and the reason for its failure. */
export function collectors(place, server) {
  const rows = server.collectors.map((one) => [
    one.name,
    el("span", { class: one.ok ? "good" : "bad" }, one.ok ? "ok" : one.why),
  ]);
  fill(
    place,
    rows.length
      ? table("Collectors", ["Collector", "State"], rows)
      : el("p", { class: "dim" }, "No data about this server yet."),
  );
}
