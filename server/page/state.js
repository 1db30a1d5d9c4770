// The view of how the server does: sizes and work, the searches of a namespace, and its drift.

import { ask } from "./api.js";
import { find, grouped, make, microseconds, pairs, replace, table } from "./dom.js";

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB"];

function bytes(number) {
  let place = 0;
  while (number >= 1024 && place < BYTES.length - 1) { number /= 1024; place += 1; }
  return `${grouped(Number(number.toPrecision(4)))} ${BYTES[place]}`;
}

function show(name, value) {
  if (typeof value === "number") return name.endsWith("_bytes") ? bytes(value) : grouped(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (value === null) return "none";
  return typeof value === "object" ? Object.entries(value).map(([part, inner]) => `${part} ${show(part, inner)}`).join(", ") : String(value);
}

const figures = (values) => [...pairs("figures", values).children];

/** Show the figures of the moment. Of a key for some namespaces the sizes are those of the chosen one. */
export async function showState() {
  const namespace = find("namespace").value;
  let sizes, title = "Memory";
  try {
    sizes = await ask("GET", "/v1/stats");
  } catch (error) {
    if (error.status !== 403) throw error;
    sizes = await ask("GET", "/v1/stats", { parameters: { namespace } });
    title = "Memory of the namespace";
  }
  find("stats-title").textContent = title;
  replace(find("stats"), ...figures(Object.entries(sizes).map(([name, value]) => [name.replaceAll("_", " "), show(name, value)])));
  const counted = await ask("GET", "/v1/monitor", { parameters: { namespace } });
  find("monitor-note").textContent = counted.query_count ? "Since the server began." : "None since the server began.";
  const latency = (seconds) => (seconds === null ? "none" : microseconds(seconds * 1e3));
  replace(find("monitor"), ...figures([
    ["queries", grouped(counted.query_count)],
    ["batches", grouped(counted.batch_count)],
    ["a batch, half within", latency(counted.batch.p50)],
    ["a batch, 95 % within", latency(counted.batch.p95)],
    ["a batch, 99 % within", latency(counted.batch.p99)],
    ["answered by", show("", counted.backends) || "none"],
    ["answered another way", `${grouped(100 * counted.fallback_rate)} %${counted.fallback_rate ? `: ${show("", counted.fallback_count)}` : ""}`],
    ["failed", show("", counted.failure_count) || "none"],
  ]));
  const rows = Object.entries(counted.results).map(([hits, queries]) => [hits, queries]);
  replace(find("histogram"), rows.length > 0 && table("Queries by their number of hits", ["hits", "queries"], rows));
}

/** Compare the words of the namespace with those of the last check. */
export async function checkDrift() {
  const report = await ask("POST", "/v1/drift", { body: { namespace: find("namespace").value } });
  replace(find("drift"), make("span", { class: report.drifted ? "bad" : "good" },
    `${grouped(100 * report.jaccard)} % of the words are the same; ${report.advice}.`));
}

