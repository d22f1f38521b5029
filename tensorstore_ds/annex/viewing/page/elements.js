// Elements of the page. Texts are always text nodes: names in a store are a stranger's.

/**
 * Make an element: `el("button", { class: "x", onclick: f, "aria-label": "go" }, "text", child)`.
 * Properties that begin with `on` are listeners; others are attributes, left out if null or false.
 */
export function el(name, properties = {}, ...children) {
  return fill(document.createElement(name), properties, children);
}

/** As `el`, of SVG. */
export function svg(name, properties = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), properties, children);
}

function fill(node, properties, children) {
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key.startsWith("aria-") && typeof value === "boolean") node.setAttribute(key, value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** A choice of names; `change` gets the chosen value. */
export function choice(label, options, value, change) {
  const select = el("select", { "aria-label": label, onchange: () => change(select.value) });
  for (const [key, text] of options) select.append(el("option", { value: key, selected: key === value }, text));
  return el("label", { class: "choice" }, `${label} `, select);
}

const FORMAT = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

/** A number for people: 1,234 or 0.1235. */
export function number(value) {
  if (!Number.isFinite(value)) return "none";
  return Number.isInteger(value) ? value.toLocaleString("en") : FORMAT.format(value);
}

/** Let the browser save text as a file. */
export function download(name, content, type) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
