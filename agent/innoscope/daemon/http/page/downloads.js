// Links to the stacks of the selected time in other formats.

import { el } from "./dom.js";

const FORMATS = ["text", "tree", "folded", "json", "speedscope", "pprof", "html"];

/** Return the links, separated by dots. */
export function downloads(server, spans, digest) {
  const [from, to] = spans.times ? spans.bounds(0) : [`-${spans.last}s`, "now"];
  return FORMATS.flatMap((format, index) => {
    const query = new URLSearchParams({ server, from, to, ...(digest ? { digest } : {}), format });
    return [index ? " · " : "", el("a", { href: `/api/stacks?${query}` }, format)];
  });
}
