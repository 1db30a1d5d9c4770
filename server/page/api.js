// Requests to this server. The key stays in sessionStorage, which this tab alone has, and ends with the tab.

const KEY = "fanrank-key";

export const readKey = () => sessionStorage.getItem(KEY);
export const keepKey = (key) => sessionStorage.setItem(KEY, key);
export const forgetKey = () => sessionStorage.removeItem(KEY);

/** What the server answered instead: a problem document (RFC 9457). */
export class Problem extends Error {
  constructor(document) {
    const place = document.field ? ` (${document.field})` : "";
    super(`${document.title}: ${document.detail}${place}`);
    this.status = document.status;
  }
}

/** No answer came. */
export class Unreachable extends Error {
  constructor() {
    super("The server does not answer.");
  }
}

/** Keeps the digits of an integer that no double holds, such as an id in a payload, where the browser can. */
function keepDigits(name, value, context) {
  const rounds = Number.isInteger(value) && !Number.isSafeInteger(value);
  return rounds && context?.source && JSON.rawJSON ? JSON.rawJSON(context.source) : value;
}

const watchers = { refused: () => {}, gone: () => {} };

/** Call `refused(reason)` where a key is missing or unknown, and `gone()` where no answer comes. */
export function watch(refused, gone) {
  Object.assign(watchers, { refused, gone });
}

/** The answer to a request, or an error: `Problem`, `Unreachable`, or that it was aborted. */
export async function ask(method, address, { body, parameters = {}, signal } = {}) {
  const headers = {};
  const key = readKey();
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const query = new URLSearchParams(parameters).toString();
  let response, text;
  try {
    response = await fetch(query ? `${address}?${query}` : address, {
      method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "omit", cache: "no-store",
    });
    text = await response.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    watchers.gone();
    throw new Unreachable();
  }
  let answer;
  try {
    answer = JSON.parse(text, keepDigits);
  } catch {
    throw new Problem({ title: `Status ${response.status}`, detail: "the answer is not JSON", status: response.status });
  }
  if (response.ok) return answer;
  const problem = new Problem(answer);
  if (response.status === 401) watchers.refused(answer.title === "KeyUnknown" ? "This server does not know the key." : "This server asks for a key.");
  throw problem;
}
