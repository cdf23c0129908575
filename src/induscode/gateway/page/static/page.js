// Refetches sections whose topics changed. The page also works without this script.
"use strict";

const wanted = new Set();
let fetching = false;
let events = null;

function listTopics(section) {
  return section.dataset.topic.split(" ");
}

// Don't replace a section while the user types or selects text in it.
function isBusy(section) {
  const active = document.activeElement;
  const selection = getSelection();
  return (section.contains(active) && active.matches("input, select, textarea"))
    || (selection !== null && !selection.isCollapsed && section.contains(selection.anchorNode));
}

// Child indexes from a section down to an element, to find the element that replaces it.
function findPath(section, element) {
  const path = [];
  for (; element !== section; element = element.parentElement) {
    path.unshift([...element.parentElement.children].indexOf(element));
  }
  return path;
}

function replaceSection(section, fresh) {
  const active = document.activeElement;
  const path = section.contains(active) ? findPath(section, active) : null;
  const scrolled = [...section.querySelectorAll(".wide, pre")].map((one) => [
    // Follow what's appended at the end.
    one.scrollLeft, one.scrollTop && one.scrollTop + one.clientHeight > one.scrollHeight - 8 ? one.scrollHeight * 2 : one.scrollTop,
  ]);
  const opened = [...section.querySelectorAll("details")].map((one) => one.open);
  section.replaceWith(fresh);
  fresh.querySelectorAll("details").forEach((one, index) => { one.open = opened[index] ?? one.open; });
  fresh.querySelectorAll(".wide, pre").forEach((one, index) => {
    [one.scrollLeft, one.scrollTop] = scrolled[index] ?? [0, 0];
  });
  if (path !== null) {
    const there = path.reduce((one, index) => one?.children[index], fresh);
    // A row above may be new.
    const moved = there?.href !== active.href && [...fresh.querySelectorAll("a")].find((one) => one.href === active.href);
    const found = moved || there;
    if (found && found.tagName === active.tagName) found.focus({ preventScroll: true });
  }
}

async function refresh() {
  if (fetching || document.hidden || !wanted.size) return;
  fetching = true;
  const topics = new Set(wanted);
  wanted.clear();
  try {
    const response = await fetch(location.href, { headers: { accept: "text/html" }, cache: "no-store" });
    if (!response.ok) return;
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    for (const section of document.querySelectorAll("[data-topic]")) {
      const other = fresh.getElementById(section.id);
      const changed = listTopics(section).filter((topic) => topics.has(topic));
      if (!other || !changed.length || section.innerHTML === other.innerHTML) continue;
      if (isBusy(section)) changed.forEach((topic) => wanted.add(topic));
      else replaceSection(section, document.importNode(other, true));
    }
    for (const badge of document.querySelectorAll("nav .badge")) {
      badge.replaceWith(document.importNode(fresh.getElementById(badge.id), true));
    }
  } catch {
    // The gateway is gone or busy: retry on the next event.
  } finally {
    fetching = false;
  }
}

const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
function updateAges() {
  for (const one of document.querySelectorAll("time.age")) {
    const seconds = Math.floor((Date.now() - Date.parse(one.dateTime)) / 1000);
    const unit = units.find(([size]) => seconds >= size);
    const text = unit ? `${Math.floor(seconds / unit[0])} ${unit[1]} ago` : "now";
    if (one.textContent !== text) one.textContent = text;
  }
}

// A form is sent once, and its button says so until the answer is there.
document.addEventListener("submit", (event) => {
  const button = event.submitter;
  if (event.target.method !== "post" || !button) return;
  setTimeout(() => {
    button.disabled = true;
    if (button.dataset.busy) button.textContent = button.dataset.busy;
  }, 0);
});
// The browser shows a page from its history as it left it.
addEventListener("pageshow", () => {
  for (const one of document.querySelectorAll("form button[type=submit]")) one.disabled = false;
});

const lost = document.createElement("p");
lost.className = "lost";
lost.setAttribute("role", "status");
document.body.append(lost);

const shown = new Set([...document.querySelectorAll("[data-topic]")].flatMap(listTopics));

// Browsers limit connections to six per site, so hidden pages give theirs up.
function listen() {
  if (document.hidden) {
    events?.close();
    events = null;
    return;
  }
  if (events !== null) return;
  events = new EventSource("/ui/events");
  events.addEventListener("ready", () => {
    lost.textContent = "";
    // Changes since the page was rendered, or while disconnected, aren't announced.
    for (const topic of shown) wanted.add(topic);
    refresh();
  });
  events.addEventListener("error", () => {
    lost.textContent = "No connection: what is shown may be old.";
  });
  events.addEventListener("change", (event) => {
    // Every view counts the calls that wait for the user.
    for (const topic of JSON.parse(event.data)) if (shown.has(topic) || topic === "approvals") wanted.add(topic);
    refresh();
  });
}

if (shown.size) {
  listen();
  document.addEventListener("visibilitychange", listen);
  document.addEventListener("focusout", () => setTimeout(refresh, 0));
  document.addEventListener("selectionchange", () => { if (getSelection().isCollapsed) refresh(); });
  addEventListener("pagehide", () => { events?.close(); events = null; });
  addEventListener("pageshow", listen);
}
setInterval(updateAges, 1000);
