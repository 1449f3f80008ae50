// Flame graph of the stacks of a time range: roots on top, colored by wait class, with keyboard navigation.

import { color } from "./colors.js";
import { average, percent } from "./format.js";
import { sharedPart, sharedPaths } from "./shared.js";

const CELL = 18;
const MIN_WIDTH = 1.5; // in pixels; narrower frames are omitted

/** Return the paths of frames that the stacks of the shown classes share. */
export function shared(profile, hidden) {
  const stacks = profile.stacks.filter(([wait]) => !hidden.has(profile.waits[wait]));
  return sharedPaths(stacks.map(([, , , ...frames]) => fromRoot(profile, frames)));
}

const fromRoot = (profile, frames) => frames.map((name) => profile.names[name]).reverse();

/** Convert the stacks of /api/flame to a tree of thread counts. Omit `hidden` classes; fold the paths in `folded`. */
export function buildTree(profile, hidden, label, folded) {
  const root = { name: "all threads", wait: "", value: 0, frames: [], children: new Map() };
  for (const [wait, threads, mark, ...frames] of profile.stacks) {
    const id = profile.waits[wait];
    if (hidden.has(id)) continue;
    const path = fromRoot(profile, frames);
    if (!path.length) path.push("[no frames]");
    const part = sharedPart(path, folded);
    const rest = part ? path.slice(part.length) : path;
    let node = root;
    node.value += threads;
    const above = [label(id), ...(mark ? [`[${mark}]`] : []), ...(part ? [`${part[0]} … ${part.at(-1)}`] : [])];
    [...above, ...rest].forEach((name, index) => {
      const frames = part && index === above.length - 1 ? part : [];
      if (!node.children.has(name))
        node.children.set(name, { name, wait: id, value: 0, frames, children: new Map() });
      node = node.children.get(name);
      node.value += threads;
    });
  }
  return listed(root);
}

function listed(node) {
  const children = [...node.children.values()].sort((a, b) => b.value - a.value).map(listed);
  return { name: node.name, wait: node.wait, value: node.value, frames: node.frames, children };
}

export class Flame {
  /**
   * `details` is the element that shows the frame under the pointer; `found` shows the result of a search.
   * `unfold` is called when the user selects a bar of folded frames.
   */
  constructor(place, details, found, unfold) {
    Object.assign(this, { place, details, found, unfold, here: null, term: "", zoomed: false });
    place.addEventListener("keydown", (event) => this.key(event));
    place.addEventListener("blur", () => this.go(null));
    new ResizeObserver(() => this.fit()).observe(place);
  }

  /** Return whether the user is interacting with the graph. If so, it must not be redrawn. */
  get used() {
    return this.zoomed || this.term !== "" || this.place.matches(":hover, :focus");
  }

  draw(tree, snapshots) {
    this.total = tree.value;
    this.snapshots = Math.max(1, snapshots);
    this.place.replaceChildren();
    this.here = null;
    this.zoomed = false;
    this.width = this.place.clientWidth;
    this.chart = flamegraph()
      .width(this.width)
      .cellHeight(CELL)
      .inverted(true)
      .transitionDuration(0)
      .minFrameSize(MIN_WIDTH)
      .sort(false)
      .setColorMapper((node) =>
        node.highlight
          ? "var(--found)"
          : node.data.wait
            ? color(node.data.wait)
            : "var(--root)",
      )
      .setLabelHandler((node) => this.words(node))
      .setDetailsHandler((text) => {
        this.details.textContent = text ?? "";
      })
      .setSearchMatch(({ data }, term) => [data.name, ...data.frames].join("\n").toLowerCase().includes(term))
      .setSearchHandler((_, sum) => {
        this.found.textContent = `${this.share(sum)} match`;
      })
      .onClick((node) => (node.data.frames.length ? this.unfold() : this.zoomedTo(node)));
    d3.select(this.place).datum(tree).call(this.chart);
    this.place.querySelector("svg")?.setAttribute("aria-hidden", "true");
    this.search(this.term);
  }

  words(node) {
    const { name, value, frames } = node.data;
    const count = frames.length ? ` (${frames.length} frames that all stacks share)` : "";
    return `${name}${count}: ${this.share(value)}`;
  }

  share(value) {
    return `${average(value / this.snapshots)} threads, ${percent(value / (this.total || 1))}`;
  }

  /** Highlight the functions whose name contains the term. */
  search(term) {
    this.term = term.trim().toLowerCase();
    this.found.textContent = "";
    if (!this.chart) return;
    if (this.term) this.chart.search(this.term);
    else this.chart.clear();
  }

  fit() {
    if (!this.chart || this.place.clientWidth === this.width || !this.place.clientWidth) return;
    this.width = this.place.clientWidth;
    this.chart.width(this.width).update();
  }

  root() {
    return d3.select(this.place).datum();
  }

  zoomedTo(node) {
    this.zoomed = Boolean(node.parent);
    this.mark(this.here);
  }

  key(event) {
    const here = this.here ?? this.root();
    const siblings = here?.parent?.children ?? [here];
    const beside = (by) => siblings[siblings.indexOf(here) + by];
    const actions = {
      ArrowDown: () => this.go(this.here ? here.children?.[0] : here),
      ArrowUp: () => this.go(here.parent),
      ArrowRight: () => this.go(beside(1)),
      ArrowLeft: () => this.go(beside(-1)),
      Home: () => this.go(this.root()),
      Enter: () => (here.data.frames.length ? this.unfold() : this.chart.zoomTo(here)),
      Escape: () => this.chart.resetZoom(),
    };
    if (!this.chart || !actions[event.key] || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    actions[event.key]();
  }

  /** Select a frame and describe it; null selects none. */
  go(node) {
    if (node === undefined) return;
    this.here = node;
    this.mark(node);
    this.details.textContent = node ? this.words(node) : "";
  }

  mark(node) {
    d3.select(this.place)
      .selectAll("g.frame")
      .classed("here", (one) => one === node);
  }
}
