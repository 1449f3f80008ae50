// Short descriptions of a server's state, from /api/status.

import { bytes, number, percent, span } from "./format.js";

const ZONES = [
  [7 / 8, "calm"],
  [15 / 16, "async flushing"],
  [31 / 32, "sync flushing"],
  [Infinity, "forced checkpoints"],
];

const joined = (...parts) => parts.filter(Boolean).join(" · ");

/** Describe the numbers of threads and connections, and the length of the history list. */
export function threads({ threads: byWait, now }) {
  const seen = Object.values(byWait).reduce((sum, count) => sum + count, 0) || now.mysqld_os_threads;
  const { connections, connections_running: running, history_list_length: history } = now;
  return joined(
    seen && `${number(seen)} threads`,
    connections !== undefined && `${number(connections)} connections, ${number(running)} running`,
    history !== undefined && `history list ${number(history)}`,
  );
}

/** Describe the dirty pages and their limit. */
export function dirty(server) {
  const pages = server.now.buffer_pool_dirty_pages;
  const { buffer_pool_dirty_ratio: ratio, buffer_pool_dirty_limit_ratio: limit } = server.now;
  if (pages === undefined) return missing(server);
  return `${number(pages)} pages, ${percent(ratio)}; limit ${percent(limit)}`;
}

/** Describe the checkpoint age, its maximum, and the zone, which depends on the oldest modification if it is known. */
export function age(server) {
  const { checkpoint_age_bytes: now, checkpoint_age_max_bytes: most } = server.now;
  const { checkpoint_age_ratio: ratio, redo_full_seconds: left, modified_age_ratio: modified } = server.now;
  if (now === undefined) return missing(server);
  if (ratio === undefined) return bytes(now);
  const zone = ZONES.find(([end]) => (modified ?? ratio) <= end)[1];
  const basis = modified === undefined ? "" : ` by the oldest modification (${percent(modified)})`;
  const soon = left !== undefined && left < 3600 ? `, full in ${span(left)} at this rate` : "";
  return `${bytes(now)}, ${percent(ratio)} of ${bytes(most)}: ${zone}${basis}${soon}`;
}

/** Return the reason why a number is missing. */
function missing({ collectors }) {
  const failing = collectors.some((collector) => !collector.ok);
  return failing ? "unknown: a collector fails, see below" : "not reported by this server";
}

/** Describe how many probes are attached, and their cost. */
export function probes({ probes: { attached, known }, now }) {
  if (!known) return "none, see Collectors for the reason";
  const [cost, budget] = [percent(now.probe_overhead_ratio, 3), percent(now.probe_budget_ratio)];
  return `${attached} of ${known} attached · ${cost} of the server's CPUs, budget ${budget}`;
}

/** Describe Innoscope's own cost: {process: {cpu, resident_bytes}}, cpu as a share of one core. */
export function cost(own) {
  const parts = Object.entries(own).sort();
  return joined(
    ...parts.map(
      ([process, { cpu, resident_bytes: resident }]) =>
        `${process}: ${cpu === undefined ? "" : `${percent(cpu, 2)} of a core, `}${bytes(resident)}`,
    ),
  );
}

/** Return the error and the remedy of a response that may be JSON. */
export function reason(text) {
  try {
    const response = JSON.parse(text);
    return [response.error, response.remedy].filter(Boolean).join(" – ") || text;
  } catch {
    return text;
  }
}
