// Lists that the keyboard goes through: Tab enters a list once, arrow keys go on from there.

import { make } from "./dom.js";

const ITEM = "button.item";

/** Make a list's first item the one that Tab reaches. */
export function settle(list) {
  list.querySelectorAll(ITEM).forEach((item, place) => item.setAttribute("tabindex", place === 0 ? "0" : "-1"));
}

function focusOn(item) {
  const list = item.closest(".hits, .chips");
  list.querySelectorAll(ITEM).forEach((other) => other.setAttribute("tabindex", other === item ? "0" : "-1"));
  item.focus();
}

/** Arrow keys, Home and End go through the items of a list; left and right go to the list beside it. */
export function listen(root) {
  root.addEventListener("keydown", (event) => {
    const list = event.target.closest(".hits, .chips");
    if (!list || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "Escape") {
      const open = event.target.closest("li")?.querySelector('button.item[aria-expanded="true"]');
      if (open) { open.click(); focusOn(open); event.preventDefault(); }
      return;
    }
    if (!event.target.matches(ITEM)) return;
    const items = [...list.querySelectorAll(ITEM)];
    const place = items.indexOf(event.target);
    const beside = (step) => {
      if (list.matches(".chips")) return items[place + step];
      const lists = [...(list.closest(".columns")?.querySelectorAll(".hits") ?? [])];
      const other = lists[lists.indexOf(list) + step];
      const others = other ? [...other.querySelectorAll(ITEM)] : [];
      return others[Math.min(place, others.length - 1)];
    };
    const target = {
      ArrowDown: () => items[place + 1],
      ArrowUp: () => items[place - 1],
      Home: () => items[0],
      End: () => items[items.length - 1],
      ArrowLeft: () => beside(-1),
      ArrowRight: () => beside(1),
    }[event.key]?.();
    if (target) { focusOn(target); event.preventDefault(); }
  });
}

let opened = 0;

/** An item that opens below itself what `fill(panel)` puts there, anew each time. */
export function openable(content, fill) {
  const panel = make("div", { class: "opened", id: `opened-${++opened}`, hidden: true });
  const button = make("button", { type: "button", class: "item hit", "aria-expanded": "false", "aria-controls": panel.id }, ...content);
  button.addEventListener("click", () => {
    const opens = panel.hidden;
    panel.hidden = !opens;
    button.setAttribute("aria-expanded", String(opens));
    panel.replaceChildren();
    if (opens) fill(panel);
  });
  return make("li", {}, button, panel);
}
