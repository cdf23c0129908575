// Fetches the sections of the page again whose topics have changed. Without this script the page works too.
"use strict";

const wanted = new Set();
let fetching = false;

async function refresh() {
  if (fetching || document.hidden) return;
  fetching = true;
  const topics = new Set(wanted);
  wanted.clear();
  try {
    const response = await fetch(location.href, { headers: { accept: "text/html" }, cache: "no-store" });
    if (!response.ok) return;
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    for (const section of document.querySelectorAll("[data-topic]")) {
      const other = fresh.getElementById(section.id);
      // What a person is typing into or reading with the keyboard stays as it is.
      if (other && topics.has(section.dataset.topic) && !section.contains(document.activeElement)) {
        if (section.innerHTML !== other.innerHTML) section.replaceWith(document.importNode(other, true));
      } else if (other && topics.has(section.dataset.topic)) {
        wanted.add(section.dataset.topic);
      }
    }
  } catch {
    // The gateway is gone or busy: the next event tries again.
  } finally {
    fetching = false;
  }
}

const shown = new Set([...document.querySelectorAll("[data-topic]")].map((section) => section.dataset.topic));
// A page that was the answer to a form cannot be fetched again.
if (shown.size && document.querySelector("main [role=status], main [role=alert]") === null) {
  const events = new EventSource("/ui/events");
  events.addEventListener("change", (event) => {
    for (const topic of JSON.parse(event.data)) if (shown.has(topic)) wanted.add(topic);
    if (wanted.size) refresh();
  });
  document.addEventListener("visibilitychange", () => { if (wanted.size) refresh(); });
  document.addEventListener("focusout", () => { if (wanted.size) setTimeout(refresh, 0); });
  addEventListener("pagehide", () => events.close());
}
