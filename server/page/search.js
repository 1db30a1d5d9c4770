// The view of a search: queries, strategies, and the hits of each side by side.

import { ask } from "./api.js";
import { count, find, foreign, json, make, microseconds, moment, pairs, replace, rounded } from "./dom.js";
import { decision, explanation, phases } from "./explain.js";
import { openable, settle } from "./lists.js";

const FIRST = ["bm25", "auto", "recall", "dialogue", "dialogue-words", "fused"]; // shown without opening the rest
const CHOSEN = ["bm25", "auto"];

let strategies = [];
let running = new AbortController();

/** Show the strategies that this server has, those of `FIRST` first. */
export async function loadStrategies() {
  if (strategies.length > 0) return;
  strategies = (await ask("GET", "/v1/strategies")).strategies;
  const choice = ({ name, about }) =>
    make("label", { class: "choice", title: about },
      make("input", { type: "checkbox", name: "strategy", value: name, checked: CHOSEN.includes(name) }), name);
  const first = FIRST.map((name) => strategies.find((one) => one.name === name)).filter((one) => one);
  replace(find("strategies"), ...first.map(choice));
  replace(find("more-strategies"), ...strategies.filter((one) => !first.includes(one)).map(choice));
}

const say = (text) => { find("status").textContent = text; };

/** What the form asks for; null where something is missing, which the status then says. */
function read() {
  const texts = find("queries").value.split("\n").map((line) => line.trim()).filter((line) => line);
  const chosen = [...document.querySelectorAll('input[name="strategy"]:checked')].map((box) => box.value);
  if (texts.length === 0) { say("Type a query first."); find("queries").focus(); return null; }
  if (chosen.length === 0) { say("Choose a strategy first."); return null; }
  const namespace = find("namespace").value;
  const place = find("under").checked && namespace ? { under: namespace } : { namespace };
  const now = find("now").value.trim() || new Date().toISOString();
  return { chosen, place, queries: texts.map((text) => ({ text, now, ...place })), k: find("k").valueAsNumber };
}

/** Search by every strategy that is chosen, and show each answer as it comes. */
export async function search() {
  const wanted = read();
  if (!wanted) return;
  running.abort();
  running = new AbortController();
  const { signal } = running;
  say("Searching…");
  const columns = wanted.queries.map(() => wanted.chosen.map((name) =>
    make("section", { class: "column", "aria-label": name }, make("h3", {}, name), make("p", { class: "quiet" }, "…"))));
  const times = make("div", { class: "columns" });
  const glance = make("summary", {}, "Times in microseconds");
  replace(find("results"),
    ...wanted.queries.map((query, row) => make("section", { class: "query" },
      make("h2", {}, foreign(query.text)), make("div", { class: "columns" }, ...columns[row]))),
    make("details", { class: "times" }, glance, times));
  const searched = "under" in wanted.place ? null
    : ask("GET", "/v1/stats", { parameters: wanted.place, signal }).catch(() => null);
  const answers = await Promise.all(wanted.chosen.map(async (strategy, place) => {
    const body = { queries: wanted.queries, k: wanted.k, strategy, texts: true, payload: true, timing: true };
    try {
      const answer = await ask("POST", "/v1/search", { body, signal });
      answer.results.forEach((result, row) => fill(columns[row][place], strategy, result, wanted.queries[row]));
      return answer;
    } catch (error) {
      if (error.name === "AbortError") return error;
      columns.forEach((row) => replace(row[place], make("h3", {}, strategy), make("p", { class: "bad" }, error.message)));
      return error;
    }
  }));
  const sizes = await searched;
  if (signal.aborted) return;
  const good = answers.filter((answer) => answer.results);
  wanted.chosen.forEach((name, place) => answers[place].results && times.append(phases(name, answers[place], sizes)));
  if (good.length === 0) times.parentElement.remove();
  const total = (answer) => Object.values(answer.timing).reduce((sum, milliseconds) => sum + milliseconds, 0);
  glance.textContent = `Times in microseconds: ${wanted.chosen.filter((_, place) => answers[place].results)
    .map((name, place) => `${name} ${microseconds(total(good[place]))}`).join(", ")}`;
  showElsewhere(wanted, answers, columns);
  const found = good.flatMap((answer) => answer.results).reduce((sum, result) => sum + result.hits.length, 0);
  const failed = answers.length - good.length;
  if (good.length === 0) {
    say("No strategy answered.");
    return;
  }
  say(`${count(found, "hit")} for ${count(wanted.queries.length, "query", "queries")} by ${count(good.length, "strategy", "strategies")}`
    + (failed ? `; ${count(failed, "strategy", "strategies")} failed.` : "."));
}

/** Put the hits of one query by one strategy into their column. */
function fill(column, strategy, result, query) {
  const list = make("ol", { class: "plain hits" }, ...result.hits.map((hit) => openable(
    [
      make("span", { class: "rank" }, String(hit.rank)),
      foreign(hit.id, "id"),
      make("span", { class: "score", title: String(hit.score) }, rounded(hit.score)),
      foreign(hit.text ?? "", "text"),
      make("span", { class: "also" }),
    ],
    (panel) => open(panel, strategy, hit, query),
  )));
  settle(list);
  replace(column,
    make("h3", {}, strategy, make("span", { class: "quiet" }, count(result.hits.length, "hit"))),
    result.decision && decision(result.decision),
    result.note && make("p", {}, `No hits: ${result.note}.`),
    list);
}

/** Below a hit: its score taken apart, and the rest of its record. */
async function open(panel, strategy, hit, query) {
  panel.setAttribute("aria-busy", "true");
  replace(panel, make("p", { class: "quiet" }, "…"));
  const parts = [];
  try {
    const explained = await ask("POST", "/v1/explain", { body: { query, id: hit.id, strategy } });
    parts.push(...explanation(explained));
    if (explained.score !== hit.score) {
      parts.push(make("p", { class: "bad" }, "This is not the score above: the memory has changed since, or another namespace has the same id. Search again."));
    }
  } catch (error) {
    parts.push(make("p", { class: "bad" }, error.message));
  }
  const about = [["namespace", foreign(hit.namespace || "the one without a name")]];
  if (hit.time !== undefined && hit.time !== null) about.push(["time", moment(hit.time)]);
  if (hit.reranked !== undefined) about.push(["reranker's score", hit.reranked === null ? "not read" : String(hit.reranked)]);
  parts.push(pairs("decision", about));
  if (Object.keys(hit.metadata ?? {}).length > 0) parts.push(make("h4", {}, "Metadata"), json(hit.metadata));
  if (hit.payload) parts.push(make("h4", {}, "Payload"), json(hit.payload));
  panel.removeAttribute("aria-busy");
  replace(panel, ...parts);
}

/** At each hit: which place the other strategies give the record. */
function showElsewhere(wanted, answers, columns) {
  const named = (hit) => JSON.stringify([hit.namespace, hit.id]);
  wanted.queries.forEach((_, row) => {
    const ranks = answers.map((answer) => answer.results && new Map(answer.results[row].hits.map((hit) => [named(hit), hit.rank])));
    answers.forEach((answer, place) => answer.results?.[row].hits.forEach((hit, number) => {
      const others = wanted.chosen.map((name, other) =>
        other !== place && ranks[other] && `${name} ${ranks[other].get(named(hit)) ?? "–"}`).filter((text) => text);
      columns[row][place].querySelectorAll(".also")[number].textContent = others.join(" · ");
    }));
    const orders = answers.map((answer) => answer.results?.[row].hits.length > 0 && JSON.stringify(answer.results[row].hits.map(named)));
    orders.forEach((order, place) => {
      const first = orders.indexOf(order);
      if (!order || first === place) return;
      columns[row][place].querySelector(".hits").replaceWith(make("p", { class: "same" }, `The same hits in the same order as ${wanted.chosen[first]}.`));
    });
  });
}
