// Create elements from text. Text from servers is never interpreted as markup.

/** Return the element with that id. */
export const by = (id) => document.getElementById(id);

/** Create an element with the given properties ("class", "onclick", aria-…). Children are elements or strings. */
export function el(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else made.setAttribute(key, String(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined).map(plain));
  return made;
}

const plain = (child) => (child instanceof Node ? child : String(child));

/** For each place whose update is postponed: the children to show once the mouse button is released. */
const postponed = new WeakMap();
const RETRY_MS = 50;

/**
 * Replace the children unless the new ones are equal, so that focus and selection are preserved. While the mouse
 * button is down in the place, postpone this: a click is lost if its element is replaced before the release.
 */
export function fill(place, ...children) {
  if (place.matches(":active")) {
    if (!postponed.has(place)) setTimeout(() => fillPostponed(place), RETRY_MS);
    postponed.set(place, children);
    return;
  }
  postponed.delete(place);
  const next = el("div", {}, ...children);
  if (next.childNodes.length === place.childNodes.length) {
    const same = [...next.childNodes].every((node, index) => node.isEqualNode(place.childNodes[index]));
    if (same) return;
  }
  const focused = place.contains(document.activeElement) ? Object.entries(document.activeElement.dataset) : [];
  place.replaceChildren(...next.childNodes);
  const selector = focused.map(([name, value]) => `[data-${name}="${CSS.escape(value)}"]`).join("");
  if (selector) place.querySelector(selector)?.focus();
}

function fillPostponed(place) {
  const children = postponed.get(place);
  postponed.delete(place);
  if (children) fill(place, ...children);
}

/** Set an element's text only if it has changed, so that screen readers do not repeat it. */
export function say(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

/** Create a table. The caption is for screen readers; a heading that starts with "n:" is a numeric column. */
export function table(caption, headings, rows, properties = {}) {
  const kinds = headings.map((heading) => (heading.startsWith("n:") ? "n" : undefined));
  const heads = headings.map((heading, index) =>
    el("th", { scope: "col", class: kinds[index] }, heading.replace(/^n:/, "")),
  );
  const cells = (row) => row.map((cell, index) => el("td", { class: kinds[index] }, cell));
  const lines = rows.map((row) => (row instanceof Node ? row : el("tr", {}, ...cells(row))));
  return el(
    "table",
    properties,
    el("caption", { class: "hidden-text" }, caption),
    el("thead", {}, el("tr", {}, ...heads)),
    el("tbody", {}, ...lines),
  );
}
