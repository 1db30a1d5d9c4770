// Makes elements. What comes from records goes in as text nodes alone: nothing here reads HTML.

/** An element with these properties and children; a child that is text becomes a text node. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const find = (id) => document.getElementById(id);

/** Text of a record, kept apart from what stands around it also where it turns the direction of writing. */
export const foreign = (text, name = "") => make("bdi", { class: name, dir: "auto" }, String(text));

export const replace = (element, ...children) => element.replaceChildren(...children.filter((child) => child));

export const count = (number, one, many = `${one}s`) => `${grouped(number)} ${number === 1 ? one : many}`;

/** A number with its thousands apart, and at most 3 decimals. */
export const grouped = (number) => number.toLocaleString("en-US", { maximumFractionDigits: 3 });

/** Four digits of a number: for a glance. */
export const rounded = (number) => String(Number(number.toPrecision(4)));

export const microseconds = (milliseconds) => `${grouped(Math.round(milliseconds * 1e3))} µs`;

/** Seconds since 1970 as ISO 8601; a number that no date has stays a number. */
export function moment(seconds) {
  const date = new Date(seconds * 1e3);
  return Number.isNaN(date.getTime()) ? String(seconds) : date.toISOString().replace(".000Z", "Z");
}

/** A table. A cell is text, a number, or an element; numbers stand to the right. */
export function table(caption, heads, rows, foot = []) {
  const isNumber = heads.map((_, place) => rows.some((row) => typeof row[place] === "number"));
  const cell = (value, place, head) => {
    const shown = typeof value === "number" ? grouped(value) : (value ?? "–");
    const name = isNumber[place] ? "number" : "";
    return head ? make("th", { scope: head, class: name }, shown) : make("td", { class: name }, shown);
  };
  const line = (row) => make("tr", {}, ...row.map((value, place) => cell(value, place, place === 0 ? "row" : "")));
  return make("div", { class: "scroll" }, make("table", {},
    make("caption", {}, caption),
    make("thead", {}, make("tr", {}, ...heads.map((head, place) => cell(head, place, "col")))),
    make("tbody", {}, ...rows.map(line)),
    foot.length > 0 && make("tfoot", {}, ...foot.map(line))));
}

/** Names and values side by side. */
export function pairs(name, entries) {
  return make("dl", { class: name }, ...entries.map(([term, value]) =>
    name === "figures"
      ? make("div", {}, make("dt", {}, term), make("dd", {}, value))
      : [make("dt", {}, term), make("dd", {}, value)]).flat());
}

export const json = (value) => make("pre", { dir: "auto" }, JSON.stringify(value, null, 2));
