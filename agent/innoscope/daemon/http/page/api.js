// Requests to the agent's HTTP API. The page contacts no other host.

const TIMEOUT_MS = 8000;

/** A failed request. `status` is 0 if the agent did not respond. */
export class RequestFailed extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function request(path, query = {}) {
  const fields = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  const url = fields.length ? `${path}?${new URLSearchParams(fields)}` : path;
  let response;
  try {
    response = await fetch(url, { signal: AbortSignal.timeout(TIMEOUT_MS), credentials: "same-origin" });
  } catch (error) {
    throw new RequestFailed(0, error.name === "TimeoutError" ? "timeout" : "no connection");
  }
  const text = await response.text();
  if (!response.ok) throw new RequestFailed(response.status, text.trim() || response.statusText);
  try {
    return JSON.parse(text);
  } catch {
    throw new RequestFailed(response.status, "the response is not JSON");
  }
}

export const status = () => request("/api/status");
export const history = (server, since) => request("/api/history", { server, since });
export const flame = (server, from, to, digest) => request("/api/flame", { server, from, to, digest });
export const sessions = (server, from, to, digest) => request("/api/sessions", { server, from, to, digest });
export const probes = () => request("/api/probes");
export const findings = (server, from, to) => request("/api/findings", { server, from, to });
export const incidents = (server) => request("/api/incidents", { server });
