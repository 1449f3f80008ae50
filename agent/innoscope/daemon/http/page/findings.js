// The findings of `innoscope diagnose` for a server, and its incident files.

import { el, fill, say, table } from "./dom.js";
import { bytes, clock, moment } from "./format.js";

const URGENT = 75;
const FUNCTIONS = 7;

// Names of findings whose details are open ("" for the list "Not checked"). They stay open when the list is redrawn.
const unfolded = new Set();
let shownServer = ""; // the server whose findings are shown

/** Show a server's findings and the time that they cover, or `why`, the reason why they are missing. */
export function findings(place, about, verdict, why) {
  if (verdict?.name !== shownServer) unfolded.clear();
  shownServer = verdict?.name ?? "";
  if (!verdict?.findings) {
    say(about, "");
    fill(place, el("p", { class: "dim" }, why || verdict?.why || "Diagnosing…"));
    return;
  }
  say(about, `${time(verdict)} · ${verdict.checked} of ${verdict.rules} checks`);
  fill(
    place,
    verdict.note ? el("p", { class: "note", role: "status" }, `Note: ${verdict.note}.`) : null,
    verdict.findings.length
      ? el("ol", { class: "findings" }, ...verdict.findings.map(finding))
      : el("p", { class: verdict.nothing_wrong && verdict.of !== "span" ? "good" : "dim" }, withoutFindings(verdict)),
    verdict.cannot_tell.length ? notChecked(verdict.cannot_tell) : null,
  );
}

/** Describe the time that the findings cover. `of` is missing if no time was requested. */
function time({ of, begun, seconds }) {
  const times = `${clock(begun)} – ${clock(begun + seconds)}`;
  if (!of) return "for the last minute";
  return of === "span" ? `for ${times}` : `for the last minute (${times}), not for the selected time`;
}

function withoutFindings(verdict) {
  if (!verdict.nothing_wrong) return "No snapshot of the threads was taken, so a stall may have been missed.";
  return verdict.rules > verdict.checked
    ? `No problems found by ${verdict.checked} of ${verdict.rules} checks.`
    : "No problems.";
}

function finding(one) {
  const urgent = one.score >= URGENT && !one.follows_from;
  const name = `${one.name}, ${Math.round(one.score)} of 100`;
  const more = one.follows_from ? `follows from ${one.follows_from.replaceAll("_", " ")}` : name;
  return el(
    "li",
    {},
    el("strong", { class: urgent ? "bad" : undefined }, one.title),
    " ",
    el("span", { class: "dim" }, more),
    ...(one.follows_from ? [] : [...one.evidence.map((line) => el("p", {}, line)), ...blocked(one)]),
    one.follows_from ? null : reasons(one),
  );
}

function blocked(one) {
  return one.blockers.flatMap(({ words, functions }) => [
    el("p", {}, `Blocker: ${words}`),
    functions.length ? el("p", {}, el("code", {}, functions.slice(0, FUNCTIONS).join(" ‹ "))) : null,
  ]);
}

/** Show the reasons and remedies of a finding, collapsed by default. */
function reasons(one) {
  const toggle = (event) => unfolded[event.target.open ? "add" : "delete"](one.name);
  const toggles = one.toggles.map((name) =>
    el("li", {}, "A toggle may help: ", el("code", {}, `innoscope toggle show ${name}`)),
  );
  return el(
    "details",
    { open: unfolded.has(one.name), ontoggle: toggle },
    el("summary", {}, "Why, and what to do"),
    el("p", {}, one.why),
    el("ul", {}, ...one.do.map((line) => el("li", {}, line)), ...toggles),
    one.see.length ? el("p", { class: "dim" }, `See: ${one.see.join("; ")}`) : null,
  );
}

function notChecked(groups) {
  const rows = groups.map(({ source, words, findings: names }) => {
    const unchecked = names.join(", ").replaceAll("_", " ");
    return el("li", {}, `${source.replaceAll("_", " ")}: ${words}, so not checked: ${unchecked}`);
  });
  const toggle = (event) => unfolded[event.target.open ? "add" : "delete"]("");
  return el(
    "details",
    { class: "dim", open: unfolded.has(""), ontoggle: toggle },
    el("summary", {}, "Not checked"),
    el("ul", {}, ...rows),
  );
}

/** Show the list of incident files, newest first. */
export function incidents(place, rows) {
  const lines = rows.map((one) => [
    moment(one.at),
    one.title ?? one.finding ?? "–",
    one.trigger ?? "–",
    bytes(one.bytes),
    el("a", { href: `/api/incidents?file=${encodeURIComponent(one.file)}`, download: one.file }, one.file),
  ]);
  fill(
    place,
    ...(lines.length
      ? [
          el("h3", {}, "Captured stalls"),
          table("Captured stalls", ["When", "First finding", "Trigger", "n:Size", "Incident file"], lines),
        ]
      : []),
  );
}
