// The live page: request the agent's data once per step (10 s by default), and draw it.

import * as api from "./api.js";
import { Charts } from "./charts.js";
import { IDLE, onScheme } from "./colors.js";
import { by, el, fill, say } from "./dom.js";
import { downloads } from "./downloads.js";
import { events } from "./events.js";
import { Filter } from "./filter.js";
import * as found from "./findings.js";
import { Flame, buildTree, shared } from "./flame.js";
import { clock, number } from "./format.js";
import * as header from "./header.js";
import { Hour, STEP } from "./hour.js";
import { remember, wanted } from "./link.js";
import { Spans } from "./spans.js";
import { statements } from "./statements.js";
import * as tables from "./tables.js";
import * as words from "./words.js";

const FIRST_WAIT = 2; // seconds until the retry if the agent does not respond; doubled up to MAX_WAIT
const MAX_WAIT = 30;
const AROUND = 60; // seconds selected before and after a mark on the time axis
const STACKS_EVERY = 3; // steps between two requests for stacks, probes and findings

const page = {
  status: null,
  server: "",
  hour: new Hour(),
  profile: null,
  hidden: new Set(IDLE),
  cursorRow: -1,
  wait: FIRST_WAIT,
  answered: null,
  steps: 0,
  own: null,
  timer: 0,
  again: 0,
  stacksRequests: 0,
  findingsRequests: 0,
  sessions: null,
  incidents: [],
  shared: [], // paths of frames to fold, computed from the stacks of all statements
  sessionsRequests: 0,
  lead: wanted().show === "findings", // alerts link directly to the findings
};

const flame = new Flame(by("flame"), by("details"), by("found"), unfold);
const charts = new Charts(
  { threads: by("threads-chart"), dirty: by("dirty-chart"), age: by("age-chart") },
  {
    cursor: pointed,
    selected: (from, to) => spans.select(from, to),
    event: (from, to) => spans.select(from - AROUND, Math.min(to + AROUND, page.status.now)),
  },
);
const spans = new Spans(by("spans"), { changed: stacksChanged, marked: (times) => charts.mark(times) });

const filter = new Filter(by("filter"), wanted(), filterChanged);

function server() {
  return page.status?.servers.find((one) => one.name === page.server);
}

function label(wait) {
  return page.hour.label(wait);
}

// ── requests ───────────────────────────────────────────────────────

async function round() {
  clearTimeout(page.timer);
  try {
    page.status = await api.status();
    arrived();
    if (server()) await Promise.all([fetchHistory(), fetchSessions()]);
    show();
    if (page.steps++ % STACKS_EVERY === 0)
      await Promise.all([refreshStacks(), fetchProbes(), fetchFindings()]);
    page.wait = FIRST_WAIT;
    later(page.status.step_seconds);
  } catch (error) {
    failed(error);
  }
}

function later(seconds) {
  clearTimeout(page.timer);
  page.again = Date.now() + seconds * 1000;
  page.timer = setTimeout(() => (document.hidden ? later(seconds) : round()), seconds * 1000);
}

function arrived() {
  page.answered = Date.now();
  document.body.classList.remove("stale");
  const loaded = new URL(import.meta.url).pathname.split("/")[2];
  if (page.status.page !== loaded && !sessionStorage.getItem(page.status.page)) {
    sessionStorage.setItem(page.status.page, "seen"); // reload only once, because a proxy may still serve the old page
    location.reload();
  }
  const names = page.status.servers.map((one) => one.name);
  if (!names.includes(page.server))
    choose(names.includes(wanted().server) ? wanted().server : (names[0] ?? ""), false);
}

async function fetchHistory() {
  const name = page.server;
  const response = await api.history(name, page.hour.since || undefined);
  if (name === page.server) page.hour.add(response, page.status.keep_seconds);
}

async function fetchSessions() {
  if (!page.status.stacks.served || !server()) return;
  const id = ++page.sessionsRequests;
  const range = spans.text;
  const [from, to] = spans.bounds(page.status.now);
  let answer = null;
  let why = "";
  try {
    answer = await api.sessions(page.server, from, to, filter.digest);
  } catch (error) {
    why = words.reason(error.message);
  }
  if (id !== page.sessionsRequests) return; // another server, time or statement was selected meanwhile
  page.sessions = { answer, why, digest: filter.digest, range, seconds: to - from };
  filter.text ||= answer?.text ?? "";
}

async function fetchStacks() {
  if (!page.status?.stacks.served || !server()) return showStacks();
  if (!page.hour.waits.at.length) return showStacks("No stacks yet: they arrive every ten seconds.");
  const id = ++page.stacksRequests;
  const range = spans.text + filter.digest;
  const [from, to] = spans.bounds(page.status.now);
  let profile = null;
  let why = "";
  try {
    profile = await api.flame(page.server, from.toFixed(3), to.toFixed(3), filter.digest);
  } catch (error) {
    why = error.message;
  }
  if (id !== page.stacksRequests) return undefined;
  page.profile = profile && { ...profile, range };
  if (profile && (!filter.digest || !page.shared.length)) page.shared = shared(profile, page.hidden);
  return showStacks(why);
}

function refreshStacks() {
  const read = flame.used || by("top").querySelector("details[open]");
  return !page.profile || (!spans.times && !read) ? fetchStacks() : undefined;
}

async function fetchProbes() {
  if (!by("probes").open || !server()) return;
  if (!page.status.sensor.up) {
    fill(by("probes-table"), el("p", { class: "dim" }, "Not available: the sensor does not respond."));
    return;
  }
  try {
    tables.probes(by("probes-table"), (await api.probes())[page.server] ?? []);
  } catch (error) {
    fill(by("probes-table"), el("p", { class: "bad" }, words.reason(error.message)));
  }
}

async function fetchFindings() {
  const { findings, now } = page.status;
  const name = page.server;
  if (!server()) return;
  const id = ++page.findingsRequests;
  let [verdict, why, files] = [null, `Not shown: ${findings.why}.`, []];
  if (findings.served) {
    try {
      verdict = await api.findings(name, ...(spans.times ? spans.bounds(now) : []));
      files = (await api.incidents(name)).incidents;
    } catch (error) {
      why = error.message;
    }
  }
  if (id !== page.findingsRequests) return; // another server or time was selected meanwhile
  found.findings(by("findings-list"), by("findings-about"), verdict, why);
  page.incidents = files;
  found.incidents(by("incidents"), files);
  by("incidents").hidden = !files.length;
  if (page.lead) {
    page.lead = false;
    by("findings-title").focus();
    by("findings").scrollIntoView();
  }
}

function failed(error) {
  if (!(error instanceof api.RequestFailed)) console.error(error);
  header.problem(error, page.answered, round);
  later(page.wait);
  page.wait = Math.min(MAX_WAIT, page.wait * 2);
  header.tick(page);
}

// ── selection ───────────────────────────────────────────────────────

function choose(name, fetch = true) {
  Object.assign(page, { server: name, hour: new Hour(), profile: null, sessions: null, shared: [], incidents: [] });
  Object.assign(page, { cursorRow: -1, steps: 0 });
  forgetFindings();
  if (fetch) {
    [filter.wait, filter.digest] = ["", ""];
    spans.follow(spans.last);
    round();
  }
}

function idleChanged() {
  showHour();
  showStacks();
}

function unfold() {
  by("shared").checked = true;
  showStacks();
}

function selected() {
  remember({ server: page.server, time: spans.text, wait: filter.wait, digest: filter.digest });
}

function stacksChanged() {
  selected();
  showSpan();
  fetchStacks();
  forgetFindings();
  if (!page.status) return;
  fetchFindings();
  fetchSessions().then(showHour);
}

/** Show a new filter. Only a filter by statement needs new data. */
function filterChanged(part) {
  selected();
  if (!page.status) return;
  if (part === "digest") {
    page.profile = null;
    fetchStacks();
    fetchSessions().then(showHour);
  }
  showHour();
  showStacks();
}

/** Remove the findings, because they do not cover the selected server and time. */
function forgetFindings() {
  page.findingsRequests++;
  found.findings(by("findings-list"), by("findings-about"), null);
}

function pointed(unix) {
  const row = unix === null ? -1 : shownHour().rowAt(unix);
  if (row === page.cursorRow) return;
  page.cursorRow = row;
  showClasses();
}

// ── display ───────────────────────────────────────────────────────

function show() {
  by("live").hidden = false;
  const { servers, sensor } = page.status;
  fill(
    by("banners"),
    sensor.up
      ? null
      : el(
          "p",
          { class: "banner bad", role: "alert" },
          `No sensor, so no stacks or probes: ${sensor.words}`,
        ),
    servers.length
      ? null
      : el(
          "p",
          { class: "banner" },
          "No mysqld or mariadbd is running on this host. ",
          "A new server is found within seconds. If one is running, check only_named in the configuration.",
        ),
  );
  by("live").classList.toggle("nothing", !servers.length);
  const one = server();
  header.servers(page, one, label, choose);
  header.cost(page);
  if (!one) return;
  showHour();
  showGauges(one);
  tables.toggles(by("toggles"), one, page.status.now);
  tables.collectors(by("collectors"), one);
}

/** Return the hour of the statement in the filter or, without one, of all threads. */
function shownHour() {
  const { sessions, hour } = page;
  const rows = filter.digest && sessions?.digest === filter.digest && sessions.answer?.rows;
  return rows ? hour.narrowed(rows) : hour;
}

function showHour() {
  const { hidden, status } = page;
  const hour = shownHour();
  const omitted = filter.hidden(hidden);
  charts.show(events(server(), page.incidents));
  charts.draw(
    hour,
    hour.seen().filter((wait) => !omitted.has(wait)),
    status.now,
    status.keep_seconds,
  );
  charts.mark(spans.times);
  filter.show(label);
  showClasses(hour);
  showStatements();
}

function showClasses(hour = shownHour()) {
  const { cursorRow } = page;
  const newest = hour.waits.at.length - 1;
  const old = newest >= 0 && page.status.now - hour.waits.at[newest] > 5 * STEP;
  const heading = cursorRow < 0 && !old ? "Now" : clock(hour.waits.at[cursorRow < 0 ? newest : cursorRow]);
  tables.classes(by("threads-table"), hour, filter, spans.bounds(page.status.now), cursorRow, heading);
}

function showStatements() {
  const { stacks } = page.status;
  const current = page.sessions?.range === spans.text ? page.sessions : {}; // ignore the sessions of another time range
  const why = stacks.served ? current.why : `Not shown: ${stacks.why}.`;
  statements(by("statements"), by("statements-about"), { ...current, why }, filter, label);
  say(by("selected"), `Selected: ${spans.words()}`);
}

function showGauges(one) {
  say(by("threads-about"), words.threads(one));
  say(by("dirty-about"), words.dirty(one));
  say(by("age-about"), words.age(one));
  say(by("probes-about"), words.probes(one));
  for (const name of ["threads", "dirty", "age"]) {
    const [title, about] = ["title", "about"].map((part) => by(`${name}-${part}`).textContent);
    by(`${name}-chart`).setAttribute("aria-label", `${title} over the last hour: ${about}`);
  }
}

function showStacks(why = "") {
  const { status, profile } = page;
  const hidden = filter.hidden(page.hidden);
  if (!status) return;
  const refused = status.stacks.served ? why : `Not shown: ${status.stacks.why}.`;
  by("no-stacks").hidden = !refused;
  by("choice").hidden = !status.stacks.served;
  say(by("no-stacks"), refused);
  by("with-stacks").hidden = Boolean(refused) || !profile;
  showSpan();
  if (refused || !profile) return;
  const tree = buildTree(profile, hidden, label, by("shared").checked ? [] : page.shared);
  by("drawn").hidden = !tree.value;
  if (tree.value) flame.draw(tree, profile.looks);
  tables.stacks(by("top"), profile, hidden, label);
}

/** Show the time range of the stacks, and links to the same stacks in other formats. */
function showSpan() {
  const { status, profile } = page;
  const served = status?.stacks.served;
  fill(by("raw"), ...(served ? ["Download: ", ...downloads(page.server, spans, filter.digest)] : []));
  const snapshots = profile?.range === spans.text + filter.digest ? ` · ${number(profile.looks)} snapshots` : " · …";
  say(by("stacks-about"), served ? spans.words() + snapshots : "");
}

// ── start ───────────────────────────────────────────────────────

for (const name of ["threads", "dirty", "age"]) {
  const chart = by(`${name}-chart`);
  chart.tabIndex = 0;
  chart.setAttribute("role", "application");
  chart.setAttribute("aria-roledescription", "chart");
  chart.setAttribute("aria-describedby", "chart-keys");
  spans.keys(chart, charts, shownHour, by("cursor"));
}
spans.text = wanted().time ?? "";
by("server").addEventListener("change", (event) => choose(event.target.value));
by("idle").addEventListener("change", (event) => {
  for (const wait of IDLE) page.hidden[event.target.checked ? "delete" : "add"](wait);
  idleChanged();
});
by("shared").addEventListener("change", () => showStacks());
by("find").addEventListener("input", (event) => flame.search(event.target.value));
by("probes").addEventListener("toggle", fetchProbes);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && page.again && Date.now() > page.again - 1000) round();
});
window.addEventListener("hashchange", () => location.reload()); // a link to another selection was pasted
onScheme(() => page.status && idleChanged());
setInterval(() => header.tick(page), 1000);
round();
