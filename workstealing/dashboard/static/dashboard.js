// Keeps the page up to date. Every name goes in by textContent, never as markup.
"use strict";

const QUIET_MS = 12000;
const AGAIN_MS = 5000;
const FRESH_MS = 10000;
const { index, events, view } = document.body.dataset;

function text(element, value) {
  if (element && element.textContent !== value) element.textContent = value;
}

function fields(element, values) {
  for (const [name, value] of Object.entries(values)) {
    text(element.querySelector(`[data-field="${name}"]`), value);
  }
}

// Makes the children of a container match a list, by id. Children that stay are left in place, so
// that a half typed input keeps its focus.
function match(container, template, list, key, fill) {
  const old = new Map([...container.children].map((child) => [child.dataset.id, child]));
  const kept = new Set();
  let place = container.firstElementChild;
  for (const each of list) {
    let element = old.get(each[key]);
    if (element) old.delete(each[key]);
    else {
      element = document.getElementById(template).content.firstElementChild.cloneNode(true);
      element.dataset.id = each[key];
    }
    fill(element, each);
    kept.add(element);
    if (element === place) place = place.nextElementSibling;
    else container.insertBefore(element, place);
  }
  for (const child of [...container.children]) if (!kept.has(child)) child.remove();
}

function cells(element, list) {
  list.forEach((each, number) => {
    const cell = element.querySelector(`[data-cell="${number}"]`);
    text(cell, each.text);
    cell.className = `figure ${each.kind}`;
  });
}

function setAll(element, name, value) {
  for (const input of element.querySelectorAll(`input[name="${name}"]`)) input.value = value;
}

function fillJob(element, job) {
  const isNew = !element.dataset.filled;
  element.dataset.filled = "yes";
  element.classList.toggle("bad", job.bad);
  const { name, problem, note, newest, elsewhere } = job;
  fields(element, { name, problem, note, newest, elsewhere, outcomes: job.outcomes.text });
  fillLines(element.querySelector(".errors"), job.errors);
  fillLines(element.querySelector(".measured"), job.measured);
  const badges = element.querySelector('[data-field="badges"]');
  badges.replaceChildren(
    ...job.badges.map((each) => {
      const badge = document.createElement("span");
      badge.className = `badge ${each.kind}`;
      badge.textContent = each.text;
      return badge;
    }),
  );
  cells(element, job.cells);
  element.querySelectorAll(".bar rect").forEach((part, number) => {
    part.setAttribute("x", job.outcomes.bar[number].x);
    part.setAttribute("width", job.outcomes.bar[number].width);
  });
  const pause = element.querySelector('[data-when="running"]');
  if (!pause) return;
  pause.hidden = job.paused;
  element.querySelector('[data-when="paused"]').hidden = !job.paused;
  setAll(element, "job", job.id);
  if (isNew) setAll(element, "rate", job.rate);
  for (const button of element.querySelectorAll(".here")) button.disabled = !job.here;
}

function fillStructure(element, structure) {
  element.classList.toggle("bad", structure.bad);
  fields(element, { name: structure.name, kind: structure.kind, problem: structure.problem });
  cells(element, structure.cells);
}

function fillSet(element, set) {
  fields(element, { name: set.name, kind: set.kind, note: set.note });
  setAll(element, "structure", set.id);
}

function fillItem(row, item) {
  const { member, place, payload, tenant, error, attempts, age, died } = item;
  fields(row, { member, place, payload, tenant, error, attempts, age, died });
  row.querySelector(".payload").classList.toggle("none", payload === "–");
  row.querySelector('[data-label="Tenant"]').classList.toggle("none", tenant === "–");
  setAll(row, "structure", item.structure);
  setAll(row, "item", item.key);
}

function fillRule(row, rule) {
  const { id, queue, key, is_paused: isPaused, ...said } = rule;
  fields(row, said);
  const pause = row.querySelector('[data-when="running"]');
  if (!pause) return;
  pause.hidden = isPaused;
  row.querySelector('[data-when="paused"]').hidden = !isPaused;
  setAll(row, "queue", queue);
  setAll(row, "rule", key);
  for (const input of row.querySelectorAll(".settings input[placeholder]")) {
    input.placeholder = rule[input.name];
  }
}

function fillProcess(row, process) {
  const { host, pid, version, since, last } = process;
  fields(row, { host, pid, version, since, last });
}

function fillEvent(row, event) {
  const { ago, said, where } = event;
  fields(row, { ago, said, where });
  row.classList.toggle("bad", event.bad);
}

function fillChartRow(row, { name, cells: said }) {
  fields(row, { name });
  said.forEach((each, number) => text(row.querySelector(`[data-cell="${number}"]`), each));
}

function fillPager(name, pager) {
  const form = document.querySelector(`.find[data-list="${name}"]`);
  form.hidden = !pager.is_needed;
  fields(form, { rows: pager.rows });
  const search = form.querySelector('input[type="search"]');
  if (document.activeElement !== search) search.value = pager.search;
  for (const [way, isEnd] of [["previous", pager.is_first], ["next", pager.is_last]]) {
    const button = form.querySelector(`[data-go="${way}"]`);
    button.value = pager[way];
    button.disabled = isEnd;
  }
}

function fillLines(container, lines) {
  if (container.children.length === lines.length) {
    lines.forEach((line, number) => text(container.children[number], line));
    return;
  }
  container.replaceChildren(
    ...lines.map((line) => {
      const item = document.createElement("li");
      item.textContent = line;
      return item;
    }),
  );
}

// As with_links in alarms.py: the section that an alarm names is a link to it.
function fillAlarms(list, alarms) {
  const { runbook } = document.body.dataset;
  if (!runbook) return fillLines(list, alarms);
  while (list.children.length > alarms.length) list.lastElementChild.remove();
  alarms.forEach((alarm, number) => {
    const line = list.children[number] || list.appendChild(document.createElement("li"));
    const parts = alarm.split(/(docs\/runbook\.md#[a-z]+)/);
    // A link that stays keeps its focus, although the seconds in its sentence change.
    if (line.childNodes.length !== parts.length) {
      line.replaceChildren(...parts.map((_, place) => (place % 2 ? document.createElement("a") : "")));
    }
    parts.forEach((part, place) => {
      const node = line.childNodes[place];
      text(node, part);
      if (place % 2) Object.assign(node, { href: runbook + part.slice(part.indexOf("#")), rel: "noreferrer" });
    });
  });
}

function fillTiles(tiles) {
  document.querySelectorAll("#tiles > li").forEach((element, number) => {
    const tile = tiles[number];
    text(element.querySelector("strong"), tile.value);
    text(element.querySelector(".unit"), tile.unit);
    element.classList.toggle("bad", tile.bad);
  });
}

// ---- charts --------------------------------------------------------------------------------------

let charts = [];
// The events of the charts' hour, as vertical lines.
let marks = [];
// A job keeps its colour as long as the page is open, and mostly on the next page as well: its name
// says which colour it has, unless another job of the charts has that one already.
const colours = new Map();
const PLACES = [0, 1, 2, 3, 4, 5, 6, 7];

function colour(name, names) {
  if (!colours.has(name)) {
    const taken = new Set(names.map((each) => colours.get(each)));
    let sum = 0;
    for (const each of name) sum = (sum * 31 + each.codePointAt(0)) % 65521;
    const wanted = PLACES.map((each) => (sum + each) % PLACES.length);
    const free = wanted.find((each) => !taken.has(each));
    colours.set(name, free === undefined ? wanted[0] : free);
  }
  return css(`--line-${colours.get(name) + 1}`);
}

function drawMarks(plot) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
  for (const mark of marks) {
    const x = Math.round(plot.valToPos(mark.at, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = css(mark.bad ? "--bad" : "--dim");
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

// Without a cursor on the chart, its legend has the last value of each line.
function showLast(plot) {
  if (plot.cursor.idx !== null && plot.cursor.idx !== undefined) return;
  const [times, ...lines] = plot.data;
  let last = times.length - 1;
  while (last > 0 && lines.every((line) => line[last] === null || line[last] === undefined)) last--;
  if (last >= 0) plot.setLegend({ idx: last });
}

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1 && value > 0) return `${+(value * 1000).toPrecision(3)} ms`;
  if (value < 120) return `${+value.toPrecision(3)} s`;
  if (value < 7200) return `${+(value / 60).toPrecision(3)} min`;
  if (value < 172800) return `${+(value / 3600).toPrecision(3)} h`;
  return `${+(value / 86400).toPrecision(3)} d`;
}

function plain(value) {
  if (value === null || value === undefined) return "–";
  for (const [limit, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (value >= limit) return `${+(value / (unit === "k" ? 1e3 : limit)).toPrecision(3)} ${unit}`;
  }
  return `${+value.toPrecision(3)}`;
}

const SECONDS = [
  0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 900,
  1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800,
  2592000, 7776000, 31536000, 315360000, 3153600000,
];

function alone(plot, series) {
  const values = plot.data[series];
  const known = (place) => values[place] !== null && values[place] !== undefined;
  return [...values.keys()].filter((at) => known(at) && !known(at - 1) && !known(at + 1));
}

function chart(id, names, height, format, special) {
  const holder = document.getElementById(id);
  holder.replaceChildren();
  const axis = {
    stroke: css("--dim"),
    grid: { stroke: css("--line"), width: 1 },
    ticks: { stroke: css("--line"), width: 1 },
    font: "12px system-ui, sans-serif",
  };
  const options = {
    width: Math.max(120, holder.clientWidth),
    height,
    tzDate: (time) => uPlot.tzDate(new Date(time * 1000), "Etc/UTC"),
    cursor: { y: false, drag: { x: false, y: false }, sync: { key: "range" } },
    legend: { show: true },
    hooks: {
      draw: [drawMarks],
      setCursor: [showLast],
      setData: [showLast, (plot) => describe(plot, holder, format)],
    },
    scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
    axes: [
      { ...axis, values: "{HH}:{mm}", space: 60 },
      {
        ...axis,
        size: 62,
        values: (_, splits) => splits.map(format),
        ...(special.incrs && { incrs: special.incrs }),
      },
    ],
    series: [
      { label: "UTC", value: "{HH}:{mm}" },
      ...names.map((name) => ({
        label: name,
        stroke: special.area ? css("--line-1") : colour(name, names),
        width: 2,
        fill: special.area ? `${css("--line-1")}22` : undefined,
        // Nothing is drawn over minutes without figures. A minute between two such gaps, which no
        // line reaches, is a point.
        spanGaps: false,
        points: { show: true, size: 4, filter: alone },
        value: (_, value) => format(value),
      })),
    ],
  };
  return new uPlot(options, [[], ...names.map(() => [])], holder);
}

// A canvas says nothing to a screen reader: this is the chart in words.
function describe(plot, holder, format) {
  const { caption } = holder.dataset;
  const said = plot.series.slice(1).map((series, number) => {
    const last = plot.data[number + 1].findLast((value) => value !== null && value !== undefined);
    return `${series.label} ${format(last)}`;
  });
  const canvas = plot.root.querySelector("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${caption}, last values: ${said.join(", ")}`);
}

function drawCharts(data) {
  for (const each of document.querySelectorAll("[data-charted]")) text(each, data.note);
  for (const each of document.querySelectorAll("[data-range-text]")) text(each, data.range_text);
  text(document.getElementById("since"), data.since);
  text(document.getElementById("callers"), data.callers);
  const rows = data.rows.map((each, number) => ({ ...each, name: data.names[number] }));
  match(document.getElementById("chart-rows"), "chart-row-template", rows, "id", fillChartRow);
  if (!window.uPlot) return;
  const key = JSON.stringify([data.names, matchMedia("(prefers-color-scheme: dark)").matches]);
  if (charts.key !== key) {
    for (const id of ["charts", "more-charts"]) document.getElementById(id).hidden = false;
    for (const each of charts) each.destroy();
    charts = [
      chart("chart-lag", data.names, 190, seconds, { incrs: SECONDS }),
      chart("chart-items", data.names, 230, plain, {}),
      chart("chart-traffic", ["enlisted"], 230, plain, { area: true }),
      chart("chart-backlog", data.names, 190, plain, {}),
      chart("chart-failures", data.names, 190, plain, {}),
      chart("chart-slices", data.names, 190, seconds, { incrs: SECONDS }),
      chart("chart-processes", ["processes"], 190, plain, { area: true }),
    ];
    charts.key = key;
  }
  marks = data.marks;
  const { lag, items, backlog, failures, slices } = data;
  const lines = [lag, items, [data.traffic], backlog, failures, slices, [data.processes]];
  lines.forEach((each, number) => charts[number].setData([data.times, ...each]));
}

let latest = null;

const resized = new ResizeObserver(() => {
  for (const each of charts) {
    const holder = each.root.parentElement;
    if (holder.clientWidth && holder.clientWidth !== each.width) {
      each.setSize({ width: holder.clientWidth, height: each.height });
    }
  }
});
for (const each of document.querySelectorAll("figure > div")) resized.observe(each);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  if (latest) drawCharts(latest.charts);
});

// ---- the page ------------------------------------------------------------------------------------

const light = document.getElementById("light");
const stale = document.getElementById("stale");
let quiet = 0;

function alive() {
  // Green only where somebody knows that all is well, however lively the connection is.
  light.className = `light live ${latest ? latest.light : "dim"}`;
  stale.hidden = true;
  clearTimeout(quiet);
  quiet = setTimeout(() => {
    light.className = "light stale";
    stale.hidden = false;
  }, QUIET_MS);
}

function fill(page) {
  latest = page;
  for (const name of ["name", "source", "at"]) {
    text(document.querySelector(`[data-page="${name}"]`), page[name]);
  }
  document.getElementById("ranges").hidden = !page.has_ranges;
  document.body.classList.toggle("old", page.old);
  const count = page.alarm_count;
  document.title = `${count ? `(${count}) ` : ""}Work stealing: ${page.name}`;
  fillAlarms(document.getElementById("alarms"), page.alarms);
  const fine = document.getElementById("fine");
  text(fine, page.fine);
  fine.hidden = count > 0;
  text(document.getElementById("verdict"), page.verdict);
  fillTiles(page.tiles);
  match(document.getElementById("jobs"), "job-template", page.jobs, "id", fillJob);
  const { structures, dead } = page;
  match(document.getElementById("structures"), "structure-template", structures, "id", fillStructure);
  match(document.getElementById("dead-sets"), "set-template", dead.sets, "id", fillSet);
  match(document.getElementById("dead-items"), "item-template", dead.items, "id", fillItem);
  text(document.getElementById("dead-text"), dead.text);
  const { text: ruled, queues, rows: rules, waiting } = page.rules;
  text(document.getElementById("rules-text"), ruled);
  match(document.getElementById("rule-rows"), "rule-template", rules, "id", fillRule);
  match(document.getElementById("waiting-rows"), "waiting-template", waiting, "id", fields);
  document.getElementById("rules-section").hidden = queues.length === 0;
  const { text: called, rows: caches } = page.caches;
  text(document.getElementById("caches-text"), called);
  match(document.getElementById("cache-rows"), "cache-template", caches, "id", fields);
  document.getElementById("caches-section").hidden = caches.length === 0;
  const { text: happened, rows: lately } = page.events;
  text(document.getElementById("events-text"), happened);
  match(document.getElementById("event-rows"), "event-template", lately, "id", fillEvent);
  document.getElementById("events-section").hidden = lately.length === 0;
  const { text: said, rows } = page.processes;
  text(document.getElementById("processes-text"), said);
  match(document.getElementById("process-rows"), "process-template", rows, "id", fillProcess);
  document.getElementById("processes-section").hidden = rows.length === 0;
  fillPager("jobs", page.jobs_pager);
  fillPager("structures", page.structures_pager);
  fillPager("dead", dead.pager);
  document.getElementById("no-jobs").hidden = page.jobs.length > 0 || page.jobs_pager.search !== "";
  document.getElementById("structures-section").hidden =
    structures.length === 0 && page.structures_pager.search === "";
  document.getElementById("dead-section").hidden =
    dead.sets.length === 0 && dead.pager.search === "";
  drawCharts(page.charts);
}

// ---- keeping up ----------------------------------------------------------------------------------

let stream = null;
// The searches and the pages that are shown; the address has them, too.
let query = location.search;
let again = 0;

async function ask() {
  const answer = await fetch(view + query, { headers: { Accept: "application/json" }, cache: "no-store" });
  if (answer.status === 401 || answer.status === 403) location.assign(index);
  if (answer.ok) {
    fill(await answer.json());
    alive();
  }
}

function listen() {
  clearTimeout(again);
  if (stream) stream.close();
  stream = new EventSource(events + query);
  stream.onmessage = (event) => {
    fill(JSON.parse(event.data));
    alive();
  };
  stream.onerror = () => {
    // The browser itself comes back after an end; it gives up after an answer that is no stream.
    if (stream.readyState !== EventSource.CLOSED) return;
    ask().catch(() => {});
    again = setTimeout(listen, AGAIN_MS);
  };
}

document.addEventListener("visibilitychange", () => {
  // A hidden page takes no thread of the server.
  if (!document.hidden) listen();
  else {
    clearTimeout(again);
    stream.close();
  }
});

// A panel lies over the rows below it, so it closes like a menu.
function closePanels(except) {
  for (const open of document.querySelectorAll(".steer details[open]")) {
    if (open !== except) open.open = false;
  }
}
document.addEventListener("click", (event) => closePanels(event.target.closest("details")));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") closePanels(null);
});

const fresh = new Map();

function say(id, message) {
  const element = document.getElementById(id);
  element.textContent = message;
  element.hidden = !message;
  // It lies on top for a while, wherever the button was, and then goes back to its place.
  clearTimeout(fresh.get(id));
  element.classList.add("fresh");
  fresh.set(id, setTimeout(() => element.classList.remove("fresh"), FRESH_MS));
}

function askAnew(wanted) {
  query = wanted.size ? `?${wanted}` : "";
  history.replaceState(null, "", index + query);
  ask().catch(() => say("refused", "The server did not answer."));
  listen();
}

document.getElementById("ranges").addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const wanted = new URLSearchParams(query);
  wanted.delete("range");
  if (link.dataset.range !== "1h") wanted.set("range", link.dataset.range);
  for (const each of document.querySelectorAll("#ranges a")) each.removeAttribute("aria-current");
  link.setAttribute("aria-current", "true");
  askAnew(wanted);
});

function find(form, button) {
  const wanted = new URLSearchParams(query);
  const { list } = form.dataset;
  wanted.delete(list);
  wanted.delete(`${list}_page`);
  const search = form.querySelector('input[type="search"]');
  if (search.value.trim()) wanted.set(list, search.value.trim());
  if (button && button.name) wanted.set(button.name, button.value);
  search.blur();
  askAnew(wanted);
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (form.matches(".find")) {
    event.preventDefault();
    find(form, event.submitter);
    return;
  }
  if (!form.matches("main form")) return;
  event.preventDefault();
  const button = event.submitter;
  const body = new URLSearchParams(new FormData(form, button));
  if (button) button.disabled = true;
  try {
    // Not form.action, because that is the button of that name.
    const answer = await fetch(form.getAttribute("action"), {
      method: "POST",
      headers: { Accept: "application/json" },
      body,
    });
    if (answer.status === 401) location.assign(index);
    const isJson = (answer.headers.get("Content-Type") || "").startsWith("application/json");
    const { said, problem } = isJson
      ? await answer.json()
      : { said: "", problem: await answer.text() };
    say("said", said);
    say("refused", problem);
    const sure = form.querySelector('input[name="sure"]');
    if (sure) sure.checked = false;
    const asked = form.closest(".ask");
    if (asked) asked.open = false;
    await ask();
  } catch {
    say("refused", "The server did not answer.");
  } finally {
    if (button) button.disabled = false;
  }
});

// On a phone the dead items would be most of the page: there a tap opens them.
if (matchMedia("(min-width: 601px)").matches) document.getElementById("dead").open = true;
fill(JSON.parse(document.getElementById("data").textContent));
listen();
