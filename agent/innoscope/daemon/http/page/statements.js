// The statements that client threads were executing in the selected time, those with the most sessions first.

import { color } from "./colors.js";
import { el, fill, say, table } from "./dom.js";
import { UNKNOWN } from "./filter.js";
import { average, clock, percent, span } from "./format.js";

const MOST = 20; // number of statements shown initially; a click on the button shows all
let all = false;

const MOSTLY = 0.9; // the observed time is shown if it is less than this share of the selected time

/** Show the `answer` of /api/sessions for a range of `seconds`, or `why`, the reason why it is missing. */
export function statements(place, about, sessions, filter, label) {
  const { answer, why, seconds } = sessions;
  if (!answer) {
    say(about, "");
    fill(place, el("p", { class: "dim" }, why || "…"));
    return;
  }
  const { digests, others, observed_seconds: observed } = answer;
  const counted = (waits) => (filter.wait ? (waits[filter.wait] ?? 0) : sum(waits));
  const total = sum([...digests.map(({ waits }) => counted(waits)), counted(others)]);
  const part = observed < MOSTLY * seconds ? `, observed for ${span(observed)} of ${span(seconds)}` : "";
  say(about, observed ? `${average(total)} average active sessions${part}` : "");
  const rows = digests
    .map((one) => ({ ...one, counted: counted(one.waits) }))
    .filter((one) => one.counted > 0)
    .sort((a, b) => b.counted - a.counted)
    .map((one) => row(one, total, filter, label));
  const rest = counted(others);
  if (rest > 0) rows.push([average(rest), percent(rest / total), "", el("em", {}, "other statements")]);
  const shown = all ? rows : rows.slice(0, MOST);
  fill(
    place,
    rows.length
      ? table("Statements", ["n:Sessions", "n:Share", "Waits", "Statement"], shown, { class: "statements" })
      : el("p", { class: "dim" }, nothing(answer)),
    rows.length > shown.length
      ? more(rows.length, () => statements(place, about, sessions, filter, label))
      : null,
  );
}

const sum = (values) => Object.values(values).reduce((total, value) => total + value, 0);

function row({ digest, text, waits, counted }, total, filter, label) {
  const id = digest ?? UNKNOWN;
  const words = text ?? (digest ? `statement ${digest}` : "unknown statement");
  const button = el(
    "button",
    {
      type: "button",
      class: "statement",
      title: words,
      "data-digest": id,
      "aria-pressed": String(filter.digest === id),
      onclick: () => filter.toggleDigest(id, words),
    },
    words,
  );
  return [average(counted), percent(counted / (total || 1)), bar(waits, counted / (total || 1), filter, label), button];
}

/** Show the wait classes of a statement as parts of a bar whose length is the statement's share. */
function bar(waits, share, filter, label) {
  const parts = Object.entries(waits)
    .filter(([wait, value]) => value > 0 && (!filter.wait || wait === filter.wait))
    .sort((a, b) => b[1] - a[1]);
  const whole = sum(parts.map(([, value]) => value)) || 1;
  const words = parts.map(([wait, value]) => `${label(wait)} ${average(value)}`).join(", ");
  const made = el("span", { class: "waits", title: words, role: "img", "aria-label": words });
  for (const [wait, value] of parts) {
    const part = el("span", {});
    part.style.width = `${((100 * value) / whole) * share}%`;
    part.style.background = color(wait);
    made.append(part);
  }
  return made;
}

function more(count, redraw) {
  const onclick = () => {
    all = true;
    redraw();
  };
  return el("button", { type: "button", onclick }, `All ${count}`);
}

function nothing({ observed_seconds: observed, since }) {
  if (!observed) return since ? `No samples from this time; the first one is from ${clock(since)}.` : "No samples yet.";
  return `No client thread was busy in ${span(observed)}.`;
}
