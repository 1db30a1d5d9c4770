// Puts the views together: tabs, the key, a server that is gone, and the keys of the keyboard.

import { ask, forgetKey, keepKey, readKey, watch } from "./api.js";
import { find } from "./dom.js";
import { listen } from "./lists.js";
import { firstPage, loadNamespaces, markChosen, nextPage, previousPage } from "./records.js";
import { loadStrategies, search } from "./search.js";
import { checkDrift, showState } from "./state.js";

const EVERY = 2000; // milliseconds between looks at the figures, and at a server that is gone

const tabs = [...find("tabs").children];
const current = () => tabs.find((tab) => tab.getAttribute("aria-selected") === "true").getAttribute("aria-controls");
const warn = (text) => { find("alert").textContent = text; };

/** Run what a person asked for; say what went wrong. A server that is gone, or asks for a key, is said elsewhere. */
function attempt(action) {
  return async () => {
    try {
      if (!waiting) warn("");
      await action();
    } catch (error) {
      if (error.status !== 401 && error.name !== "AbortError" && !waiting) warn(error.message);
    }
  };
}

// The key.

function askForKey(reason) {
  find("key-reason").textContent = reason;
  find("key-form").hidden = false;
  find("key-forget").hidden = !readKey();
  find("key").focus();
}

find("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = find("key").value.trim();
  if (!key) return;
  keepKey(key);
  find("key").value = "";
  find("key-form").hidden = true;
  start();
  find("queries").focus();
});
find("key-forget").addEventListener("click", () => {
  forgetKey();
  location.reload();
});

// A server that is gone.

let waiting = false;

function waitForServer() {
  if (waiting) return;
  waiting = true;
  warn("The server does not answer. This page tries again until it does.");
  const look = async () => {
    try {
      await fetch("/v1/health", { cache: "no-store" });
    } catch {
      setTimeout(look, EVERY);
      return;
    }
    waiting = false;
    warn("");
    find("status").textContent = "The server answers again.";
    start();
  };
  setTimeout(look, EVERY);
}

watch(askForKey, waitForServer);

// Views.

function select(tab) {
  tabs.forEach((other) => {
    const chosen = other === tab;
    other.setAttribute("aria-selected", String(chosen));
    other.setAttribute("tabindex", chosen ? "0" : "-1");
    find(other.getAttribute("aria-controls")).hidden = !chosen;
  });
  show();
}

const show = attempt(async () => {
  if (current() === "records") await Promise.all([loadNamespaces(), firstPage()]);
  if (current() === "state") await showState();
});

find("tabs").addEventListener("click", (event) => event.target.matches('[role="tab"]') && select(event.target));
find("tabs").addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step) return;
  const tab = tabs[(tabs.indexOf(event.target) + step + tabs.length) % tabs.length];
  select(tab);
  tab.focus();
});

find("namespace").addEventListener("change", () => {
  markChosen();
  find("drift").replaceChildren();
  // The list of namespaces stays, and with it the focus on the one that was chosen.
  attempt(() => ({ records: firstPage, state: showState })[current()]?.())();
});
find("search-form").addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(async () => {
    await loadStrategies();
    await search();
  })();
});
find("order").addEventListener("change", attempt(firstPage));
find("reverse").addEventListener("change", attempt(firstPage));
for (const name of ["filter", "record-id"]) find(name).addEventListener("change", attempt(firstPage));
find("next").addEventListener("click", attempt(nextPage));
find("previous").addEventListener("click", attempt(previousPage));
find("drift-check").addEventListener("click", attempt(checkDrift));

// The keyboard.

listen(document.body);
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input:not([type=checkbox]), textarea, select");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    select(tabs[0]);
    find("queries").focus();
    event.preventDefault();
  }
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && current() === "search") {
    find("search-form").requestSubmit();
    event.preventDefault();
  }
  if (event.key === "Escape" && event.target.closest("#key-form")) find("key-form").hidden = true;
});

// Figures are looked at while they are seen.
async function refresh() {
  if (current() === "state" && !document.hidden && !waiting && find("key-form").hidden) {
    // An error was shown when the view opened.
    await showState().catch(() => {});
  }
  setTimeout(refresh, EVERY);
}

const start = attempt(async () => {
  await Promise.all([loadStrategies(), loadNamespaces()]);
  await show();
});

await start();
setTimeout(refresh, EVERY);
