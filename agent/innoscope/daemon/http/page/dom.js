// Elements of text: nothing that a server says is ever taken for markup.

/** The element with that id. */
export const by = (id) => document.getElementById(id);

/** An element; properties by name ("class", "onclick", aria-…), children are elements or text. */
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

/** Put these in the place of what is there, unless it would look the same: focus and selections stay. */
export function fill(place, ...children) {
  const next = el("div", {}, ...children);
  if (next.childNodes.length === place.childNodes.length) {
    const same = [...next.childNodes].every((node, index) => node.isEqualNode(place.childNodes[index]));
    if (same) return;
  }
  place.replaceChildren(...next.childNodes);
}

/** Set text if it changed: what is read aloud is not read twice. */
export function say(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

/** A table: caption for who cannot see it, headings ("n" in front: numbers), rows of cells. */
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
