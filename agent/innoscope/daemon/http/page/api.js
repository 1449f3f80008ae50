// Asking the agent; nothing else is ever asked.

const PATIENCE_MS = 8000;

/** Why there is no answer: `status` is 0 where the agent did not answer at all. */
export class Unanswered extends Error {
  constructor(status, words) {
    super(words);
    this.status = status;
  }
}

async function ask(path, query = {}) {
  const asked = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  const address = asked.length ? `${path}?${new URLSearchParams(asked)}` : path;
  let answer;
  try {
    answer = await fetch(address, { signal: AbortSignal.timeout(PATIENCE_MS), credentials: "same-origin" });
  } catch (error) {
    throw new Unanswered(0, error.name === "TimeoutError" ? "no answer in time" : "no connection");
  }
  const text = await answer.text();
  if (!answer.ok) throw new Unanswered(answer.status, text.trim() || answer.statusText);
  try {
    return JSON.parse(text);
  } catch {
    throw new Unanswered(answer.status, "an answer that is not JSON");
  }
}

export const status = () => ask("/api/status");
export const history = (server, since) => ask("/api/history", { server, since });
export const flame = (server, from, to) => ask("/api/flame", { server, from, to });
export const probes = () => ask("/api/probes");
export const findings = (server) => ask("/api/findings", { server });
export const incidents = (server) => ask("/api/incidents", { server });
