/** Elements by hand: text stays text, nothing is ever parsed as markup. */

export const byId = (id) => document.getElementById(id);

/** An element with properties (attributes where it has no such property) and children: nodes or text. */
export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

/** An SVG element with attributes. */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Fill a select with names, and keep what was chosen if it is still there. */
export function fillSelect(select, names, none) {
  const chosen = select.value;
  const options = names.map((name) => el("option", { value: name }, name));
  select.replaceChildren(...(options.length ? options : [el("option", { value: "" }, none)]));
  select.disabled = options.length === 0;
  if (names.includes(chosen)) select.value = chosen;
}
