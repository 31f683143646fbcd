"use strict";
// The console: asks the broker once a second, draws, and speaks to it over HTTP and a WebSocket.
const $ = (id) => document.getElementById(id);
const HISTORY = 120;
let token = sessionStorage.getItem("tocsin-token") || "";
let before = null;
const history = [];
let socket = null;

async function ask(path, options = {}) {
  const headers = { ...(options.headers || {}) };
  if (token) headers.authorization = `Bearer ${token}`;
  const answer = await fetch(path, { ...options, headers });
  if (answer.status === 401) {
    $("token-form").hidden = false;
    throw new Error("the broker asks for a token");
  }
  const found = answer.headers.get("content-type")?.includes("json") ? await answer.json() : {};
  if (!answer.ok) throw Object.assign(new Error(found.detail || answer.statusText), { problem: found });
  return found;
}

const post = (path, body) =>
  ask(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });

function percentile(bounds, counts, share) {
  const total = counts.reduce((a, b) => a + b, 0);
  if (!total) return null;
  let seen = 0;
  for (let i = 0; i < counts.length; i++) {
    seen += counts[i];
    if (seen >= share * total) return i < bounds.length ? bounds[i] * 1000 : bounds.at(-1) * 1000;
  }
  return null;
}

async function look() {
  try {
    const now = await ask("stats");
    $("state").textContent = `${location.host} · ${now.ready ? "ready" : "stopping"} · version ${now.version}`;
    $("state").className = "";
    if (before && now.started === before.started) { take(before, now); showNetwork(before, now); }
    before = now;
  } catch (error) {
    $("state").textContent = error.message;
    $("state").className = "bad";
    before = null;
  }
}

function take(old, now) {
  const seconds = Math.max(now.at - old.at, 1e-3);
  const rate = (name) => (now[name] - old[name]) / seconds;
  const counts = now.to_notify.map((n, i) => n - old.to_notify[i]);
  const point = {
    events: rate("events"), notifications: rate("notifications"),
    p50: percentile(now.bounds, counts, 0.5), p99: percentile(now.bounds, counts, 0.99),
  };
  history.push(point);
  if (history.length > HISTORY) history.shift();
  const shown = [
    ["Events / s", point.events], ["Matches / s", rate("matches")],
    ["Transitions / s", rate("transitions")], ["Notifications / s", point.notifications],
    ["Subscriptions", now.subscriptions], ["Publications", now.publications], ["Retained", now.retained],
    ["Connections", now.connections], ["Queue", now.queue_events], ["Unacknowledged", now.backlog],
    ["Dropped", now.dropped + now.overflowed], ["Dead letters", now.dead],
  ];
  const list = $("figures");
  list.replaceChildren(...shown.map(([name, value]) => {
    const box = document.createElement("div");
    box.append(element("dt", name), element("dd", number(value)));
    return box;
  }));
  draw("rates", [history.map((p) => p.events), history.map((p) => p.notifications)], ["events", "notifications"]);
  draw("latency", [history.map((p) => p.p50), history.map((p) => p.p99)], ["median", "99 %"]);
}

function showNetwork(old, now) {
  $("network").hidden = !now.overlay;
  if (!now.overlay) return;
  const seconds = Math.max(now.at - old.at, 1e-3);
  const net = now.overlay, known = new Map((old.overlay?.links || []).map((each) => [each.name, each]));
  $("network-state").textContent =
    `${net.name}, one of ${net.brokers.length} brokers · ${net.spurious} spurious events`;
  $("links").replaceChildren(...net.links.map((link) => {
    const row = document.createElement("tr"), last = known.get(link.name) || link;
    const rate = (name) => number((link[name] - last[name]) / seconds);
    const wants = link.wants.map((each) => `${each.topic}: ${each.shown.join("; or ")}`).join(" · ");
    row.append(element("td", link.name), element("td", link.state), element("td", wants || "nothing"));
    const figures = [rate("events_in"), rate("events_out"), rate("bytes_out"), link.spurious, link.waiting];
    row.append(...figures.map((figure) => element("td", String(figure), "n")));
    return row;
  }));
}

const number = (value) => value >= 100 ? Math.round(value).toLocaleString("en") : String(Math.round(value * 10) / 10);

function element(tag, text, className) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function draw(id, series, names) {
  const canvas = $(id), scale = devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const style = getComputedStyle(document.documentElement);
  const colours = ["--accent", "--second"].map((name) => style.getPropertyValue(name));
  const most = Math.max(1, ...series.flat().filter((v) => v !== null)) * 1.1;
  pen.font = "12px system-ui, sans-serif";
  pen.fillStyle = style.getPropertyValue("--quiet");
  pen.strokeStyle = style.getPropertyValue("--line");
  for (const share of [0, 0.5, 1]) {
    const y = height - 18 - share * (height - 34);
    pen.beginPath(); pen.moveTo(44, y); pen.lineTo(width, y); pen.stroke();
    pen.fillText(number(share * most), 0, y + 4);
  }
  series.forEach((values, at) => {
    pen.strokeStyle = pen.fillStyle = colours[at];
    pen.lineWidth = 1.75;
    pen.setLineDash(at ? [5, 3] : []);
    pen.beginPath();
    let drawing = false;
    values.forEach((value, i) => {
      if (value === null) { drawing = false; return; }
      const x = 44 + (width - 46) * (HISTORY - values.length + i) / (HISTORY - 1);
      const y = height - 18 - (height - 34) * value / most;
      if (drawing) pen.lineTo(x, y); else pen.moveTo(x, y);
      drawing = true;
    });
    pen.stroke();
    pen.setLineDash([]);
    pen.fillText(`${at ? "- -" : "—"} ${names[at]}`, 48 + at * 120, height - 3);
  });
  canvas.setAttribute("aria-label", names.map((name, at) => `${name}: ${series[at].at(-1) ?? "none"}`).join(", "));
}

let asking = 0;
async function tryCondition() {
  const mine = ++asking, where = $("where").value;
  $("where-error").textContent = "";
  if (!where.trim()) { $("try-result").replaceChildren(); return; }
  try {
    const params = $("try-params").value.trim() ? JSON.parse($("try-params").value) : {};
    const found = await post("conditions", { where, params, type: $("try-type").value || null });
    if (mine === asking) showCondition(found);
  } catch (error) {
    if (mine !== asking) return;
    const problem = error.problem || {};
    $("try-result").replaceChildren();
    $("where-error").textContent = problem.highlight ? `${problem.highlight}\n${problem.message}` : error.message;
  }
}

function showCondition(found) {
  const parts = [];
  const part = (title, text) => parts.push(element("h3", title), element("pre", text));
  const warnings = found.warnings || [];
  if (warnings.length) {
    part("Warnings", warnings.join("\n"));
    parts.at(-1).className = "warning";
  }
  if (found.normal_form) {
    part("Normal form", found.normal_form.join("\nor ") || "never");
    part("Plan", found.plan);
    part(`Recent events that match: ${found.matched} of ${found.recent}`,
      found.events.slice(0, 5).map((each) => JSON.stringify(each.event)).join("\n") || "none");
  } else {
    part("Read as", found.parsed);
    part("Needs parameters", found.parameters.join(", "));
  }
  $("try-result").replaceChildren(...parts);
}

async function publish(submitted) {
  submitted.preventDefault();
  const query = new URLSearchParams();
  for (const name of ["type", "key"]) {
    const given = $(`publish-${name}`).value.trim();
    if (given) query.set(name, given);
  }
  try {
    const event = JSON.parse($("event").value);
    const found = await post(`events${query.size ? `?${query}` : ""}`, event);
    const said = [`Published as ${found.last}; ${found.matches} matches`, ...(found.warnings || [])];
    $("publish-result").textContent = said.join("; ");
  } catch (error) {
    $("publish-result").textContent = error.message;
  }
}

function watch(submitted) {
  submitted.preventDefault();
  if (socket) { socket.close(); return; }
  const protocols = token ? ["tocsin", `bearer.${token}`] : ["tocsin"];
  socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/ws`, protocols);
  $("watch-button").textContent = "Stop";
  const request = { op: "subscribe", where: $("watch-where").value };
  if ($("watch-notify").value) request.notify = $("watch-notify").value;
  socket.onopen = () => socket.send(JSON.stringify(request));
  socket.onmessage = (message) => {
    const found = JSON.parse(message.data);
    if (found.error) { $("watch-state").textContent = found.detail; socket.close(); return; }
    if (found.ok) {
      $("watch-state").textContent = ["watching", ...(found.warnings || [])].join("; ");
      return;
    }
    const at = new Date(found.published / 1000).toLocaleTimeString();
    const said = [at, found.kind, found.type, found.key, JSON.stringify(found.event), found.gone];
    const line = element("li", said.filter((each) => each !== undefined).join(" "));
    $("watched").prepend(line);
    while ($("watched").children.length > 200) $("watched").lastChild.remove();
  };
  socket.onclose = () => {
    socket = null;
    $("watch-button").textContent = "Watch";
    if ($("watch-state").textContent.startsWith("watching")) $("watch-state").textContent = "stopped";
  };
}

async function listSubscriptions() {
  const query = new URLSearchParams({ search: $("search").value, order: $("order").value, limit: "50" });
  try {
    const found = await ask(`subscriptions?${query}`);
    $("found").textContent = `${found.found.toLocaleString("en")} found`;
    $("subscriptions").replaceChildren(...found.subscriptions.map((each) => {
      const row = document.createElement("tr");
      row.append(
        element("td", each.id), element("td", each.type ?? "every"), element("td", each.where),
        element("td", each.notify || "every match"),
        element("td", each.durable ? "yes" : "no"), element("td", number(each.matched), "n"),
        element("td", number(each.pending), "n"), element("td", number(each.listeners), "n"));
      return row;
    }));
  } catch (error) {
    $("found").textContent = error.message;
  }
}

function later(work, milliseconds) {
  let timer;
  return () => { clearTimeout(timer); timer = setTimeout(work, milliseconds); };
}

for (const id of ["where", "try-type", "try-params"]) $(id).addEventListener("input", later(tryCondition, 150));
$("try-form").addEventListener("submit", (submitted) => submitted.preventDefault());
$("publish-form").addEventListener("submit", publish);
$("watch-form").addEventListener("submit", watch);
$("search-form").addEventListener("submit", (submitted) => { submitted.preventDefault(); listSubscriptions(); });
$("search").addEventListener("input", later(listSubscriptions, 150));
$("order").addEventListener("change", listSubscriptions);
$("token-form").addEventListener("submit", (submitted) => {
  submitted.preventDefault();
  token = $("token").value.trim();
  sessionStorage.setItem("tocsin-token", token);
  $("token-form").hidden = true;
  look();
  listSubscriptions();
});
look();
listSubscriptions();
setInterval(look, 1000);
setInterval(listSubscriptions, 3000);
