// The filter of the charts and the stacks: a wait class, a statement, or both.

import { color } from "./colors.js";
import { el, fill } from "./dom.js";

const DIGEST = /^[0-9a-f]{16}$/;

/** Placeholder digest for threads whose statement is not known, as in /api/sessions?digest=. */
export const UNKNOWN = "0".repeat(16);

export class Filter {
  /** `place` shows the filter. `changed` is called with "wait" or "digest" after a change. */
  constructor(place, { wait = "", digest = "" }, changed) {
    Object.assign(this, { place, changed, wait, digest: DIGEST.test(digest) ? digest : "", text: "" });
  }

  /** Filter by a wait class, or remove the filter if it is set to that class already. */
  toggleWait(wait) {
    this.wait = this.wait === wait ? "" : wait;
    this.changed("wait");
  }

  /** Filter by a statement, or remove the filter if it is set to that statement already. */
  toggleDigest(digest, text = "") {
    this.digest = this.digest === digest ? "" : digest;
    this.text = text;
    this.changed("digest");
  }

  clear() {
    [this.wait, this.digest] = ["", ""];
    this.changed("digest");
  }

  /** Return the classes to hide, as an object with the `has` method; without a filter by wait class, `usual`. */
  hidden(usual) {
    return this.wait ? { has: (wait) => wait !== this.wait } : usual;
  }

  /** Show the filter, and a button to remove each part. */
  show(label) {
    this.place.hidden = !this.wait && !this.digest;
    fill(
      this.place,
      el("span", { class: "dim" }, "Only"),
      this.wait ? this.part(this.wait, label(this.wait), () => this.toggleWait(this.wait)) : null,
      this.digest
        ? this.part("", this.text || `statement ${this.digest}`, () => this.toggleDigest(this.digest))
        : null,
      el("button", { type: "button", class: "clear", onclick: () => this.clear() }, "Clear"),
    );
  }

  part(wait, text, onclick) {
    const swatch = el("span", { class: "swatch", "aria-hidden": "true" });
    if (wait) swatch.style.background = color(wait);
    return el(
      "button",
      { type: "button", class: "part", title: text, "aria-label": `Remove the filter ${text}`, onclick },
      wait ? swatch : null,
      el("span", { class: "cut" }, text),
      el("span", { "aria-hidden": "true" }, " ✕"),
    );
  }
}
