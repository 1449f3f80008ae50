// The live page: asks the agent every few seconds, and draws what it says.

import * as api from "./api.js";
import { Charts } from "./charts.js";
import { IDLE, onScheme } from "./colors.js";
import { by, el, fill, say } from "./dom.js";
import * as found from "./findings.js";
import { Flame, grow } from "./flame.js";
import { clock, number, span } from "./format.js";
import { Hour, STEP } from "./hour.js";
import { Spans } from "./spans.js";
import * as tables from "./tables.js";
import * as words from "./words.js";

const FIRST_WAIT = 2; // seconds until the next try when the agent does not answer; doubled up to
const LONGEST_WAIT = 30;
const STACKS_EVERY = 3; // steps: stacks that follow the clock need not follow every one
const FORMATS = ["text", "tree", "folded", "json", "speedscope", "pprof", "html"];

const page = {
  status: null,
  server: "",
  hour: new Hour(),
  told: null,
  hidden: new Set(IDLE),
  cursorRow: -1,
  wait: FIRST_WAIT,
  answered: null,
  steps: 0,
  own: null,
  timer: 0,
  again: 0,
  asked: 0,
  lead: wanted().show === "findings", // where alerts lead to
};

const flame = new Flame(by("flame"), by("details"), by("found"));
const charts = new Charts(
  { threads: by("threads-chart"), dirty: by("dirty-chart"), age: by("age-chart") },
  { cursor: pointed, selected: (from, to) => spans.select(from, to) },
);
const spans = new Spans(by("spans"), { changed: stacksChanged, marked: (times) => charts.mark(times) });

function server() {
  return page.status?.servers.find((one) => one.name === page.server);
}

function label(wait) {
  return page.hour.label(wait);
}

// ── asking ──────────────────────────────────────────────────────────────────────────────────────────

async function round() {
  clearTimeout(page.timer);
  try {
    page.status = await api.status();
    arrived();
    if (server()) await askHistory();
    show();
    if (page.steps++ % STACKS_EVERY === 0) await Promise.all([followStacks(), askProbes(), askFindings()]);
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
    sessionStorage.setItem(page.status.page, "seen"); // once: a proxy may give us an old page for ever
    location.reload();
  }
  const names = page.status.servers.map((one) => one.name);
  if (!names.includes(page.server))
    choose(names.includes(wanted().server) ? wanted().server : (names[0] ?? ""), false);
}

async function askHistory() {
  const asked = page.server;
  const told = await api.history(asked, page.hour.since || undefined);
  if (asked === page.server) page.hour.take(told, page.status.keep_seconds);
}

async function askStacks() {
  if (!page.status?.stacks.served || !server()) return showStacks();
  if (!page.hour.waits.at.length) return showStacks("No stacks yet: they are told ten seconds at a time.");
  const mine = ++page.asked;
  const asked = spans.text;
  const [from, to] = spans.asked(page.status.now);
  let told = null;
  let why = "";
  try {
    told = await api.flame(page.server, from.toFixed(3), to.toFixed(3));
  } catch (error) {
    why = error.message;
  }
  if (mine !== page.asked) return undefined;
  page.told = told && { ...told, asked };
  return showStacks(why);
}

function followStacks() {
  const read = flame.used || by("top").querySelector("details[open]");
  return !page.told || (!spans.times && !read) ? askStacks() : undefined;
}

async function askProbes() {
  if (!by("probes").open || !server()) return;
  if (!page.status.sensor.up) {
    fill(by("probes-table"), el("p", { class: "dim" }, "The sensor tells of them, and it does not answer."));
    return;
  }
  try {
    tables.probes(by("probes-table"), (await api.probes())[page.server] ?? []);
  } catch (error) {
    fill(by("probes-table"), el("p", { class: "bad" }, words.reason(error.message)));
  }
}

async function askFindings() {
  const { stacks } = page.status;
  const asked = page.server;
  if (!server()) return;
  let [told, why, files] = [null, `Not shown: ${stacks.why}.`, []];
  if (stacks.served) {
    try {
      told = await api.findings(asked);
      files = (await api.incidents(asked)).incidents;
    } catch (error) {
      why = error.message;
    }
  }
  if (asked !== page.server) return;
  found.findings(by("findings-list"), by("findings-about"), told, why);
  found.incidents(by("incidents"), files);
  by("incidents").hidden = !files.length;
  if (page.lead) {
    page.lead = false;
    by("findings-title").focus();
    by("findings").scrollIntoView();
  }
}

function failed(error) {
  if (!(error instanceof api.Unanswered)) console.error(error);
  document.body.classList.add("stale");
  const since = page.answered ? ` since ${clock(page.answered / 1000)}` : "";
  const words = error.status
    ? `answers with ${error.status}: ${error.message}`
    : `does not answer${since} (${error.message})`;
  by("live").hidden = false;
  by("said").replaceChildren(
    el(
      "p",
      { class: "banner bad", role: "alert" },
      `The agent at ${location.host} ${words}. `,
      page.answered ? "What is below is from before. " : "",
      "It is asked again ",
      el("span", { id: "again" }),
      " ",
      el("button", { type: "button", onclick: round }, "Now"),
    ),
  );
  later(page.wait);
  page.wait = Math.min(LONGEST_WAIT, page.wait * 2);
  tick();
}

// ── choosing ────────────────────────────────────────────────────────────────────────────────────────

function wanted() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

function remember() {
  const chosen = new URLSearchParams({ server: page.server, time: spans.text });
  history.replaceState(null, "", `#${chosen}`);
}

function choose(name, ask = true) {
  Object.assign(page, { server: name, hour: new Hour(), told: null, cursorRow: -1, steps: 0 });
  found.findings(by("findings-list"), by("findings-about"), null);
  if (ask) {
    spans.follow(spans.last);
    round();
  }
}

function press(wait) {
  if (page.hidden.has(wait)) page.hidden.delete(wait);
  else page.hidden.add(wait);
  classesChanged();
}

function classesChanged() {
  by("idle").checked = ![...IDLE].some((wait) => page.hidden.has(wait));
  showHour();
  showStacks();
}

function stacksChanged() {
  remember();
  showSpan();
  askStacks();
}

function pointed(unix) {
  const row = unix === null ? -1 : page.hour.rowAt(unix);
  if (row === page.cursorRow) return;
  page.cursorRow = row;
  showClasses();
}

// ── showing ─────────────────────────────────────────────────────────────────────────────────────────

function show() {
  by("live").hidden = false;
  const { servers, sensor } = page.status;
  fill(
    by("said"),
    sensor.up
      ? null
      : el(
          "p",
          { class: "banner bad", role: "alert" },
          `No sensor, so no stacks and no probes: ${sensor.words}`,
        ),
    servers.length
      ? null
      : el(
          "p",
          { class: "banner" },
          "No mysqld or mariadbd is running on this host. ",
          "One that starts is found within seconds; one that runs may be left out by only_named.",
        ),
  );
  by("live").classList.toggle("nothing", !servers.length);
  showHeader(servers);
  showOwn();
  const one = server();
  if (!one) return;
  showHour();
  showGauges(one);
  tables.toggles(by("toggles"), one, page.status.now);
  tables.collectors(by("collectors"), one);
}

function showHeader(servers) {
  const pick = by("server");
  fill(pick, ...servers.map((one) => el("option", { value: one.name }, one.name)));
  pick.value = page.server;
  pick.parentElement.hidden = servers.length < 2;
  by("fleet").hidden = servers.length < 2;
  tables.fleet(by("fleet-table"), servers, page.server, label, choose);
  const one = server();
  const started = one?.now.mysqld_start_time_seconds;
  fill(
    by("what"),
    ...(one
      ? [
          servers.length < 2 ? el("strong", {}, `${one.name}: `) : null,
          `${one.what}, `,
          tables.up(one),
          started && one.up ? ` for ${span(page.status.now - started)}` : "",
        ]
      : []),
  );
  document.title = `${page.server || "Innoscope"} – Innoscope`;
  tick();
}

function showHour() {
  const { hour, hidden, status } = page;
  charts.draw(
    hour,
    hour.seen().filter((wait) => !hidden.has(wait)),
    status.now,
    status.keep_seconds,
  );
  charts.mark(spans.times);
  showClasses();
}

function showClasses() {
  const { hour, hidden, cursorRow } = page;
  const newest = hour.waits.at.length - 1;
  const old = newest >= 0 && page.status.now - hour.waits.at[newest] > 5 * STEP;
  const heading = cursorRow < 0 && !old ? "Now" : clock(hour.waits.at[cursorRow < 0 ? newest : cursorRow]);
  tables.classes(by("threads-table"), hour, hidden, cursorRow, heading, press);
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
  const { status, told, hidden } = page;
  if (!status) return;
  const refused = status.stacks.served ? why : `Not shown: ${status.stacks.why}.`;
  by("no-stacks").hidden = !refused;
  by("choice").hidden = !status.stacks.served;
  say(by("no-stacks"), refused);
  by("with-stacks").hidden = Boolean(refused) || !told;
  showSpan();
  if (refused || !told) return;
  const tree = grow(told, hidden, label);
  by("drawn").hidden = !tree.value;
  if (tree.value) flame.draw(tree, told.looks);
  tables.stacks(by("top"), told, hidden, label);
}

/** Which time it is, and where to get the same in other formats. */
function showSpan() {
  const { status, told } = page;
  const served = status?.stacks.served;
  fill(by("raw"), ...(served ? ["The same as ", ...links()] : []));
  const looks = told?.asked === spans.text ? ` · ${number(told.looks)} looks` : " · …";
  say(by("stacks-about"), served ? spans.words() + looks : "");
}

function links() {
  const [from, to] = spans.times ? spans.asked(0) : [`-${spans.last}s`, "now"];
  return FORMATS.flatMap((format, index) => {
    const query = new URLSearchParams({ server: page.server, from, to, format });
    return [index ? " · " : "", el("a", { href: `/api/stacks?${query}` }, format)];
  });
}

function showOwn() {
  const { own, now, version, telemetry_path: path } = page.status;
  const before = page.own;
  for (const [process, one] of Object.entries(own)) {
    const earlier = before?.own[process];
    if (earlier && now > before.now && one.cpu_seconds >= earlier.cpu_seconds) {
      one.cpu = (one.cpu_seconds - earlier.cpu_seconds) / (now - before.now);
    }
  }
  if (!before || now - before.now > 30) page.own = { own, now };
  say(by("cost"), `Innoscope ${version} · ${words.cost(own)}`);
  by("links").querySelector("a").setAttribute("href", path);
}

/** What the clock changes by itself. */
function tick() {
  const ago = page.answered ? Math.max(0, Math.round((Date.now() - page.answered) / 1000)) : 0;
  const stale = document.body.classList.contains("stale");
  const sensor = page.status?.sensor.up;
  say(
    by("state"),
    stale ? "agent: no answer" : sensor === undefined ? "" : sensor ? "sensor answers" : "no sensor",
  );
  by("state").className = stale || sensor === false ? "bad" : "good";
  by("state").title = page.answered ? `asked ${span(ago)} ago` : "";
  const again = document.getElementById("again");
  if (again) say(again, `in ${Math.max(0, Math.ceil((page.again - Date.now()) / 1000))} s.`);
}

// ── beginning ───────────────────────────────────────────────────────────────────────────────────────

for (const name of ["threads", "dirty", "age"]) {
  const chart = by(`${name}-chart`);
  chart.tabIndex = 0;
  chart.setAttribute("role", "application");
  chart.setAttribute("aria-roledescription", "chart");
  chart.setAttribute("aria-describedby", "chart-keys");
  spans.keys(chart, charts, () => page.hour, by("cursor"));
}
spans.text = wanted().time ?? "";
by("server").addEventListener("change", (event) => choose(event.target.value));
by("idle").addEventListener("change", (event) => {
  for (const wait of IDLE) page.hidden[event.target.checked ? "delete" : "add"](wait);
  classesChanged();
});
by("find").addEventListener("input", (event) => flame.search(event.target.value));
by("probes").addEventListener("toggle", askProbes);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && page.again && Date.now() > page.again - 1000) round();
});
onScheme(() => page.status && classesChanged());
setInterval(tick, 1000);
round();
