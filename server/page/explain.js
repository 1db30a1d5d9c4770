// A score taken apart, and what was decided about a query.

import { foreign, grouped, make, microseconds, moment, pairs, rounded, table } from "./dom.js";

const SCALE = 2 ** 18; // quanta of a score of 1

/** The tables of an explanation, each with its sum and whether that is the score exactly. */
export function explanation(explained) {
  if (explained.channels) return fused(explained);
  return [lexical(explained, "Term by term"), ...remarks(explained)];
}

/** BM25: integers, so that the sum does not depend on its order. */
function lexical(explained, caption) {
  const rows = explained.terms.map((term) => [
    foreign(term.term), term.quanta, term.multiplicity, counts(term.frequencies), term.document_frequency, term.idf,
  ]);
  const lent = explained.neighbours.map((share) => [
    make("span", {}, "lent by ", foreign(share.id), `, ${share.distance > 0 ? "+" : ""}${share.distance}, ${share.weight} of ${grouped(share.quanta)}`),
    share.weight * share.quanta, null, null, null, null,
  ]);
  const sum = [...explained.terms.map((term) => term.quanta), ...lent.map((row) => row[1])].reduce((a, b) => a + b, 0);
  const foot = [["Sum", sum, "", "", "", ""]];
  const body = table(caption, ["term", "quanta", abbreviation("×", "times in the query"),
    abbreviation("tf", "times in the record"), abbreviation("df", "records that hold it"), abbreviation("idf", "inverse document frequency")], [...rows, ...lent], foot);
  const claim = explained.decay === 1
    ? equation(`${grouped(sum)} quanta / 2^18 = ${explained.score}`, sum / SCALE === explained.score)
    : make("p", {}, `${grouped(sum)} quanta / 2^18, times ${explained.decay} for its age: ${explained.score}`);
  return make("div", {}, body, claim);
}

/** Channels: shares that are added one after another in this order. */
function fused(explained) {
  const rows = explained.channels.map((share) => [
    share.channel, String(share.share), share.rank, share.score,
  ]);
  const sum = explained.channels.reduce((total, share) => total + share.share, 0);
  const parts = [table("Channel by channel", ["channel", "adds", "rank", "score"], rows, [["Sum", String(sum), "", ""]])];
  if (explained.score === null) parts.push(make("p", {}, "No channel lists this record, so it is no candidate."));
  else parts.push(equation(`The sum is ${explained.score}`, sum === explained.score));
  if (explained.lexical) parts.push(lexical(explained.lexical, "Its channel bm25, term by term"), ...remarks(explained.lexical));
  return parts;
}

function equation(text, exact) {
  return make("p", { class: exact ? "sum good" : "sum bad" }, exact ? `${text}: exactly the score.` : `${text}: this is not the score.`);
}

function remarks(explained) {
  return [
    !explained.matched && make("p", {}, "It holds no term of the query."),
    !explained.passed && make("p", {}, "It does not pass the query's filter or time range."),
  ].filter((remark) => remark);
}

function counts(frequencies) {
  const entries = Object.entries(frequencies).filter(([, number]) => number > 0);
  if (Object.keys(frequencies).length === 1 && entries.length === 1) return entries[0][1];
  return entries.map(([field, number]) => `${field} ${grouped(number)}`).join(", ") || 0;
}

const abbreviation = (short, long) => make("abbr", { title: long }, short);

const named = (values, show = rounded) => Object.entries(values).map(([name, value]) => `${name} ${show(value)}`).join(", ");

/** What a cascade, a router, `auto` or `recall` decided about a query, what it read in it, and why. */
export function decision(decided) {
  const { when } = decided;
  const known = {
    strategy: ["answered by", decided.strategy],
    type: ["kind of question", decided.type],
    weights: ["weights of strategies", decided.weights && named(decided.weights)],
    confidence: ["confidence of bm25", decided.confidence !== undefined && rounded(decided.confidence)],
    threshold: ["threshold", decided.threshold !== undefined && (decided.threshold === "inf" ? "never" : rounded(decided.threshold))],
    escalated: ["escalated", decided.escalated ? "yes" : "no"],
    when: ["time that was read", when && make("span", {}, foreign(when.expression), `: ${span(when)} (${when.kind}${when.speculative ? ", speculative" : ""})`)],
    entities: ["entities that were read", decided.entities && foreign(named(decided.entities))],
    hints: ["types hinted at", decided.hints && decided.hints.join(", ")],
    skipped: ["left out", decided.skipped && named(decided.skipped, (reason) => `(${reason})`)],
    widened: ["filter of types", "dropped, as it left nothing"],
    milliseconds: ["its share of the time", microseconds(decided.milliseconds ?? 0)],
  };
  return pairs("decision", Object.keys(known).filter((name) => name in decided).map((name) => known[name]));
}

function span(when) {
  const edge = (seconds) => (typeof seconds === "number" ? moment(seconds) : "any time");
  return `${edge(when.start)} to ${edge(when.end)}`;
}

/** The phases of a search as bars, and the postings that it read. */
export function phases(strategy, answer, searched) {
  const entries = Object.entries(answer.timing ?? {});
  const total = entries.reduce((sum, [, milliseconds]) => sum + milliseconds, 0);
  const rows = entries.map(([name, milliseconds]) => {
    const bar = make("div", { "aria-hidden": "true" });
    bar.style.width = `${total > 0 ? (100 * milliseconds) / total : 0}%`;
    return make("tr", {}, make("th", { scope: "row" }, name), make("td", { class: "number" }, microseconds(milliseconds)), make("td", { class: "bar" }, bar));
  });
  const read = typeof answer.postings === "number"
    ? `${grouped(answer.postings)} postings were read${searched ? `; the namespace has ${grouped(searched.postings)} in ${grouped(searched.segments)} segments` : ""}.`
    : "Postings were not counted.";
  return make("section", { class: "column", "aria-label": `times of ${strategy}` },
    make("h3", {}, strategy, make("span", { class: "quiet" }, microseconds(total))),
    rows.length > 0 ? make("table", {}, make("tbody", {}, ...rows)) : make("p", {}, "No phase was timed."),
    make("p", { class: "quiet" }, read, ` Scores by ${answer.backend}.`));
}
