// The filters at the side: a histogram above each, which filters when it is clicked.
import { el, number, svg } from "./elements.js";

const MOST_CLASSES = 12;
const MOST_SHOWN = 2000; // after "more"

/** The panel of a list of items; `changed()` is called after each change, `load(offer)` gives the facet of an offer. */
export class Panel {
  constructor({ changed, load }) {
    Object.assign(this, { changed, load });
    this.element = el("div", { class: "filters" });
  }

  /** Show the facets that a list offers; those of the names in `opened` are loaded. */
  async show(list, opened) {
    this.list = list;
    this.sections = new Map();
    this.element.replaceChildren();
    for (const offer of list.offered) {
      const body = el("div", { class: "facet" });
      const details = el("details", {}, el("summary", {}, offer.label ?? offer.name), body);
      details.addEventListener("toggle", () => details.open && this.open(offer));
      this.sections.set(offer.name, { details, body, offer });
      this.element.append(details);
    }
    await Promise.all(list.offered.filter((offer) => opened.includes(offer.name)).map((offer) => this.open(offer)));
  }

  async open(offer) {
    const { details, body } = this.sections.get(offer.name);
    details.open = true;
    if (this.list.filters.get(offer.name)) return;
    body.replaceChildren(el("p", { class: "quiet" }, "loading ..."));
    try {
      await this.load(offer);
      this.draw(offer.name);
    } catch (error) {
      body.replaceChildren(el("p", { class: "error" }, error.message));
    }
  }

  /** Draw the counts of all open facets anew. */
  update() {
    for (const name of this.sections?.keys() ?? []) this.draw(name);
  }

  draw(name) {
    const facet = this.list.filters.get(name);
    if (!facet) return;
    const { body, details } = this.sections.get(name);
    details.classList.toggle("active", facet.isActive);
    const focused = body.contains(document.activeElement) ? document.activeElement.dataset.part : null;
    body.replaceChildren(...{ class: classBars, number: numberBars, text: textField }[facet.kind](facet, this.list.filters, (chosen) => this.choose(facet, chosen)));
    if (focused) body.querySelector(`[data-part="${CSS.escape(focused)}"]`)?.focus();
  }

  choose(facet, chosen) {
    this.list.filters.choose(facet, chosen);
    this.changed();
  }
}

function reset(facet, choose) {
  if (!facet.isActive) return [];
  return [el("button", { class: "reset", "data-part": "reset", onclick: () => choose(null) }, "all")];
}

/** Names of classes with bars; a click shows a class alone, further clicks add others. */
function classBars(facet, filters, choose) {
  const { all, now } = filters.counts(facet);
  const most = all.reduce((a, b) => Math.max(a, b), 1);
  const order = [...all.keys()].filter((bar) => all[bar]).sort((a, b) => all[b] - all[a]);
  const shown = order.slice(0, facet.showsAll ? MOST_SHOWN : MOST_CLASSES);
  const rows = shown.map((bar) => {
    const label = bar - 1;
    const name = label < 0 ? "none" : (facet.names[label] ?? String(label));
    const isOn = facet.chosen?.includes(label) ?? false;
    const toggle = () => {
      const next = isOn ? facet.chosen.filter((each) => each !== label) : [...(facet.chosen ?? []), label];
      choose(next.length ? next : null);
    };
    const bars = el("span", { class: "bars" }, el("span", { class: "all" }), el("span", { class: "now" }));
    bars.children[0].style.width = `${(100 * all[bar]) / most}%`;
    bars.children[1].style.width = `${(100 * now[bar]) / most}%`;
    return el("button", { class: "bar", "data-part": `class ${label}`, "aria-pressed": isOn, onclick: toggle }, el("span", { class: "name" }, name), el("span", { class: "count" }, number(now[bar])), bars);
  });
  if (order.length > shown.length && !facet.showsAll) {
    const more = () => {
      facet.showsAll = true;
      choose(facet.chosen);
    };
    rows.push(el("button", { class: "more", "data-part": "more", onclick: more }, `${order.length - shown.length} more`));
  }
  return [...rows, ...reset(facet, choose)];
}

/** A histogram; a click shows a bar alone, dragging over several shows these. */
function numberBars(facet, filters, choose) {
  const { all, now } = filters.counts(facet);
  const { low, high, count } = facet.edges;
  if ((count === 1 || low === high) && !facet.isActive) return [el("p", { class: "quiet" }, all[0] ? `always ${number(low)}` : "no numbers")];
  const most = all.reduce((a, b) => Math.max(a, b), 1);
  const height = 56;
  const width = 240 / count;
  const chart = svg("svg", { viewBox: `0 0 240 ${height}`, class: "histogram", role: "group", "aria-label": `histogram of ${facet.label}` });
  let from = null;
  for (let bar = 0; bar < count; bar++) {
    const [start, stop] = facet.span(bar);
    const isOn = facet.chosen && facet.chosen[0] <= start && stop <= facet.chosen[1];
    const text = `${number(start)}${start === stop ? "" : ` to ${number(stop)}`}: ${number(now[bar])} of ${number(all[bar])}`;
    const choose2 = (first, last) => choose([facet.span(Math.min(first, last))[0], facet.span(Math.max(first, last))[1]]);
    const group = svg("g", { role: "button", tabindex: all[bar] ? 0 : -1, "aria-label": text, "aria-pressed": Boolean(isOn), "data-part": `bar ${bar}`, class: isOn ? "on" : "" }, svg("title", {}, text));
    group.append(svg("rect", { x: bar * width, y: 0, width, height, class: "hit" }));
    for (const [name, value] of [["all", all[bar]], ["now", now[bar]]]) {
      const tall = value ? Math.max(1.5, (value / most) * height) : 0;
      group.append(svg("rect", { x: bar * width + 0.5, y: height - tall, width: Math.max(0.5, width - 1), height: tall, class: name }));
    }
    group.addEventListener("pointerdown", () => (from = bar));
    group.addEventListener("pointerup", () => {
      if (from !== null) choose2(from, bar);
      from = null;
    });
    group.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        choose2(event.shiftKey && facet.last !== undefined ? facet.last : bar, bar);
        facet.last = bar;
      }
    });
    chart.append(group);
  }
  const limits = [0, 1].map((end) => el("input", {
    type: "number", step: "any", "data-part": `limit ${end}`, "aria-label": `${end ? "most" : "least"} ${facet.label}`,
    value: facet.chosen ? facet.chosen[end] : "", placeholder: number(end && facet.edges.isWhole && count === high - low ? high - 1 : [low, high][end]),
    onchange: () => {
      const values = limits.map((input, i) => (input.value === "" ? [-Infinity, Infinity][i] : Number(input.value)));
      choose(limits.every((input) => input.value === "") ? null : values);
    },
  }));
  return [chart, el("div", { class: "limits" }, limits[0], "to", limits[1]), ...reset(facet, choose)];
}

function textField(facet, filters, choose) {
  const input = el("input", { type: "search", value: facet.chosen ?? "", placeholder: "part of the text", "data-part": "text", "aria-label": `filter by ${facet.label}`, onchange: () => choose(input.value || null) });
  return [input];
}
