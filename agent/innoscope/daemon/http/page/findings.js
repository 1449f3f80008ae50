// What is wrong with a server, as `innoscope diagnose` says it, and the files of stalls that were captured.

import { el, fill, say, table } from "./dom.js";
import { bytes, moment } from "./format.js";

const URGENT = 75;
const FUNCTIONS = 7;

const unfolded = new Set(); // findings whose reasons are being read: numbers change under them
let reader = ""; // the server that they are of

/** The verdict on a server's last minute, `why` instead of it where there is none. */
export function findings(place, about, told, why) {
  if (told?.name !== reader) unfolded.clear();
  reader = told?.name ?? "";
  if (!told?.findings) {
    say(about, "");
    fill(place, el("p", { class: "dim" }, why || told?.why || "They are being judged."));
    return;
  }
  const unknown = told.rules - told.checked;
  say(about, `of the last minute · ${told.checked} of ${told.rules} checks`);
  fill(
    place,
    told.findings.length
      ? el("ol", { class: "findings" }, ...told.findings.map(finding))
      : el("p", { class: "good" }, unknown ? "Nothing wrong was found." : "Nothing is wrong."),
    told.cannot_tell.length ? cannotTell(told.cannot_tell) : null,
  );
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
    el("p", {}, `Blocked by ${words}`),
    functions.length ? el("p", {}, el("code", {}, functions.slice(0, FUNCTIONS).join(" ‹ "))) : null,
  ]);
}

/** Why it happens and what to do, folded until somebody wants it. */
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

function cannotTell(groups) {
  const rows = groups.map(({ source, words, findings: names }) => {
    const untold = names.join(", ").replaceAll("_", " ");
    return el("li", {}, `${source.replaceAll("_", " ")}: ${words}, so not told: ${untold}`);
  });
  const toggle = (event) => unfolded[event.target.open ? "add" : "delete"]("");
  return el(
    "details",
    { class: "dim", open: unfolded.has(""), ontoggle: toggle },
    el("summary", {}, "What could not be told"),
    el("ul", {}, ...rows),
  );
}

/** Files of stalls, the newest first. */
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
