// Builds elements, and updates the page in place.
//
// All content becomes text nodes and attributes, never markup, so nothing needs escaping. `render`
// patches the existing tree node by node: focus, selection, scroll positions and open details
// survive a refresh.

const SVG = "http://www.w3.org/2000/svg";
// Symbols, because a form's fields are its properties: a field named `key` would collide.
const KEY = Symbol("key");
const HANDLERS = Symbol("handlers");
const EVENTS = ["click", "submit", "input", "change", "pointermove", "pointerout"];

/** An HTML element. Properties become attributes, except `on` (handlers by event) and `key`. */
export const h = (tag, properties, ...children) =>
  build(document.createElement(tag), properties, children);

/** An SVG element. */
export const s = (tag, properties, ...children) =>
  build(document.createElementNS(SVG, tag), properties, children);

function build(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (name === "on") element[HANDLERS] = value;
    else if (name === "key") element[KEY] = String(value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined)
      element.setAttribute(name, String(value));
  }
  element.append(...nodes(children));
  return element;
}

function nodes(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));
}

/** Make these the children of `root`. Keeps matching elements. */
export function render(root, ...children) {
  patchChildren(root, nodes(children));
}

function patchChildren(old, fresh) {
  const keyed = new Map();
  for (const child of old.childNodes) if (child[KEY] !== undefined) keyed.set(child[KEY], child);
  let cursor = old.firstChild;
  for (const node of fresh) {
    const known = node[KEY] === undefined ? cursor : keyed.get(node[KEY]);
    if (known && alike(known, node)) {
      if (known === cursor) cursor = cursor.nextSibling;
      else old.insertBefore(known, cursor);
      patch(known, node);
    } else {
      old.insertBefore(node, cursor);
    }
  }
  while (cursor) {
    const next = cursor.nextSibling;
    cursor.remove();
    cursor = next;
  }
}

const alike = (one, other) =>
  one.nodeType === other.nodeType && one.nodeName === other.nodeName && one[KEY] === other[KEY];

function patch(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  old[HANDLERS] = fresh[HANDLERS];
  for (const { name } of [...old.attributes])
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  for (const { name, value } of fresh.attributes)
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  patchChildren(old, [...fresh.childNodes]);
}

/** Handlers for an element that `h` did not build. */
export function on(element, handlers) {
  element[HANDLERS] = handlers;
}

/** Add one listener per event type. It calls the handler of the nearest element that has one. */
export function listen(root) {
  for (const type of EVENTS) {
    root.addEventListener(type, (event) => {
      for (let at = event.target; at && at !== root; at = at.parentNode) {
        const handler = at[HANDLERS]?.[type];
        if (handler) {
          if (type === "submit") event.preventDefault();
          handler(event, at);
          return;
        }
      }
    });
  }
}
