// The page's header and footer: the servers, the state of agent and sensor, and Innoscope's own cost.

import { by, el, fill, say } from "./dom.js";
import { clock, span } from "./format.js";
import * as tables from "./tables.js";
import * as words from "./words.js";

/** List the servers to choose from, and describe the chosen one. */
export function servers(page, one, label, choose) {
  const { servers: all, now } = page.status;
  const pick = by("server");
  fill(pick, ...all.map(({ name }) => el("option", { value: name }, name)));
  pick.value = page.server;
  pick.parentElement.hidden = all.length < 2;
  by("fleet").hidden = all.length < 2;
  tables.fleet(by("fleet-table"), all, page.server, label, choose);
  const started = one?.now.mysqld_start_time_seconds;
  fill(
    by("what"),
    ...(one
      ? [
          all.length < 2 ? el("strong", {}, `${one.name}: `) : null,
          `${one.what}, `,
          tables.up(one),
          started && one.up ? ` for ${span(now - started)}` : "",
        ]
      : []),
  );
  document.title = `${page.server || "Innoscope"} – Innoscope`;
  tick(page);
}

/** Show Innoscope's own memory use, and its CPU use over at most 30 s plus one step of the agent. */
export function cost(page) {
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

/** Update the texts that depend on the clock. Called once per second. */
export function tick(page) {
  const ago = page.answered ? Math.max(0, Math.round((Date.now() - page.answered) / 1000)) : 0;
  const stale = document.body.classList.contains("stale");
  const sensor = page.status?.sensor.up;
  say(
    by("state"),
    stale ? "agent: no response" : sensor === undefined ? "" : sensor ? "sensor: ok" : "no sensor",
  );
  by("state").className = stale || sensor === false ? "bad" : "good";
  by("state").title = page.answered ? `updated ${span(ago)} ago` : "";
  const again = document.getElementById("again");
  if (again) say(again, `in ${Math.max(0, Math.ceil((page.again - Date.now()) / 1000))} s.`);
}

/** Report that the agent does not respond, or responds with an error; `answered` is the time of its last response. */
export function problem(error, answered, retry) {
  document.body.classList.add("stale");
  const reason = error.status
    ? `responds with ${error.status}: ${error.message}`
    : answered
      ? `has not responded since ${clock(answered / 1000)} (${error.message})`
      : `does not respond (${error.message})`;
  by("live").hidden = false;
  by("banners").replaceChildren(
    el(
      "p",
      { class: "banner bad", role: "alert" },
      `The agent at ${location.host} ${reason}. `,
      answered ? "The data below is not current. " : "",
      "Next attempt ",
      el("span", { id: "again" }),
      " ",
      el("button", { type: "button", onclick: retry }, "Now"),
    ),
  );
}
