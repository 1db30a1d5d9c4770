// The view of what is there: namespaces, and the records of one page by page.

import { ask } from "./api.js";
import { count, find, foreign, json, make, moment, replace, table } from "./dom.js";
import { openable, settle } from "./lists.js";

const PAGE = 20;
const SHOWN = 200; // namespaces that are listed; any other is typed

let pages = [null]; // where each page up to the one that is shown begins
let following = null;
let asked = 0;
let begun = false; // a namespace was chosen for whoever opened the page

/** List the namespaces that the caller may read, also as what the field of the namespace offers. */
export async function loadNamespaces() {
  const { namespaces, after } = await ask("GET", "/v1/namespaces");
  replace(find("namespaces"), ...namespaces.slice(0, SHOWN).map((one) => make("option", { value: one.namespace })));
  const more = namespaces.length - SHOWN;
  find("namespaces-note").textContent = namespaces.length === 0 ? "There are no records yet."
    : more > 0 ? `${after === undefined ? "" : "More than "}${count(more, "further namespace")}: type its name above.` : "";
  replace(find("namespace-list"), ...namespaces.slice(0, SHOWN).map((one) => {
    const choose = () => {
      find("namespace").value = one.namespace;
      find("namespace").dispatchEvent(new Event("change"));
    };
    const item = make("button", { type: "button", class: "item", onclick: choose },
      foreign(one.namespace || "(without a name)"), ` ${count(one.records, "record")}`);
    item.namespace = one.namespace;
    return make("li", {}, item);
  }));
  settle(find("namespace-list"));
  if (!begun && namespaces.length > 0) {
    begun = true;
    const field = find("namespace");
    if (!field.value) field.value = namespaces.reduce((most, one) => (one.records > most.records ? one : most)).namespace;
  }
  markChosen();
}

/** Show which namespace is chosen. */
export function markChosen() {
  const chosen = find("namespace").value;
  find("records-title").textContent = chosen ? `Records of ${chosen}` : "Records of the namespace without a name";
  find("namespace-list").querySelectorAll("button").forEach((item) => item.setAttribute("aria-current", String(item.namespace === chosen)));
}

/** Show the first page of records. */
export function firstPage() {
  pages = [null];
  return showPage();
}

export function nextPage() {
  pages.push(following);
  return showPage();
}

export function previousPage() {
  pages.pop();
  return showPage();
}

async function showPage() {
  const parameters = { namespace: find("namespace").value, limit: PAGE, order: find("order").value, reverse: find("reverse").checked };
  const after = pages[pages.length - 1], id = find("record-id").value, filter = find("filter").value.trim();
  if (after !== null) parameters.after = after;
  if (filter) parameters.filter = filter;
  const previous = find("previous"), next = find("next"), mine = ++asked;
  [previous.disabled, next.disabled] = [true, true];
  let page;
  try {
    page = id ? { records: [await ask("GET", address(id), { parameters: { namespace: parameters.namespace } })], after: null }
      : await ask("GET", "/v1/records", { parameters });
  } catch (error) {
    find("records-note").textContent = error.message;
    replace(find("record-list"));
    return;
  }
  if (mine !== asked) return;
  following = page.after;
  previous.disabled = pages.length === 1;
  next.disabled = following === null;
  find("records-note").textContent = page.records.length === 0 ? "No records here." : `Page ${pages.length}: ${count(page.records.length, "record")}.`;
  const first = (pages.length - 1) * PAGE;
  replace(find("record-list"), ...page.records.map((record, place) => openable(
    [
      make("span", { class: "rank" }, String(first + place + 1)),
      foreign(record.id, "id"),
      make("span", { class: "quiet" }, record.time === undefined ? "" : moment(record.time)),
      foreign(record.text, "text"),
    ],
    (panel) => panel.append(json(record), tools(record)),
  )));
  settle(find("record-list"));
}

const address = (id) => `/v1/records/${encodeURIComponent(id)}`;

/** Buttons that change or delete a record. Each shows first what it would do. */
function tools(record) {
  const { id, namespace = "", ...fields } = record;
  const preview = make("div", { role: "status", "aria-live": "polite" });
  const text = make("textarea", { rows: 8, spellcheck: "false", "aria-label": `Fields of ${id}`, hidden: true });
  const button = (name, action) => make("button", { type: "button", onclick: action }, name);
  const confirm = (what, name, method, body) => replace(preview, ...what, button(name, async () => {
    try {
      await ask(method, address(id), { parameters: { namespace }, body });
      await showPage();
    } catch (error) {
      replace(preview, make("p", { class: "bad" }, error.message));
    }
  }));
  const show = () => {
    let changed;
    try {
      changed = JSON.parse(text.value);
    } catch (error) {
      replace(preview, make("p", { class: "bad" }, `This is not JSON: ${error.message}`));
      return;
    }
    const differs = (name) => JSON.stringify(fields[name]) !== JSON.stringify(changed[name]);
    if (["text", "passages"].some(differs)) {
      // What stands for the old text: the server's encoders make it anew.
      for (const name of ["embedding", "weights"]) if (!differs(name)) delete changed[name];
    }
    const names = [...new Set([...Object.keys(fields), ...Object.keys(changed)])].filter(differs);
    if (names.length === 0) { replace(preview, make("p", {}, "Nothing is changed.")); return; }
    const rows = names.map((name) => [name, foreign(JSON.stringify(fields[name]) ?? "–"), foreign(JSON.stringify(changed[name]) ?? "–")]);
    confirm([table("What is written", ["field", "before", "after"], rows)], "Write it", "PUT", changed);
  };
  const look = button("Preview", show);
  look.hidden = true;
  return make("div", { class: "tools" },
    button("Edit", () => {
      [text.hidden, look.hidden, text.value] = [false, false, JSON.stringify(fields, null, 2)];
      text.focus();
    }),
    button("Delete", () => confirm([make("p", {}, "This record is deleted for good: ", foreign(record.text.slice(0, 200)))], "Delete it", "DELETE")),
    text, look, preview);
}
