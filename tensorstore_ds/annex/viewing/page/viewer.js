// The viewer of a store: what is shown, and how the parts work together. The page and the notebook's widget start it.
import { confusionTable, pairsOfLabels } from "./confusion.js";
import { Detail } from "./detail.js";
import { choice, el, number } from "./elements.js";
import { sorted } from "./filters.js";
import { findingsView } from "./findings.js";
import { Grid } from "./grid.js";
import { LEAST_SCORE, SIZES, headOf } from "./head.js";
import { Images, Objects } from "./items.js";
import { Panel } from "./panel.js";
import { Scatter } from "./scatter.js";
import { Selection } from "./selection.js";
import { openStore } from "./store.js";
import { Tags } from "./tags.js";
import { curves, epochsOf } from "./training.js";

const MANY = 300000; // with more rows, columns are read when they are asked for
const LIVE_MS = 3000;
const REST_MS = 200; // browsers let a page write its address some hundred times in ten seconds

export class Viewer {
  /**
   * @param place the element to fill
   * @param settings `source` of the store; `findings` of tsds check; `runs`: [{name, read}]; `address`: {read, write} of
   *   the view's text; `marked`, which is called with the marked rows; `server` of tags; `title`, `path` and `notes`
   */
  constructor(place, settings) {
    Object.assign(this, { place, settings });
    this.state = new Map(new URLSearchParams(settings.address.read()));
    this.selection = new Selection(this);
    this.lists = new Map();
  }

  async open() {
    const { settings } = this;
    this.status = el("p", { class: "status", role: "status" });
    this.main = el("main", {});
    this.head = el("header", {});
    this.place.replaceChildren(el("div", { class: "viewer" }, this.head, this.main, this.status));
    if (!settings.source) {
      this.head.append(el("h1", {}, settings.title ?? "training"));
      return this.showTraining();
    }
    this.store = await openStore(settings.source);
    this.tags = await new Tags(this.store.digest, settings.server).load();
    this.parts();
    await this.restore();
    return this;
  }

  get(name, otherwise) {
    return this.state.get(name) ?? otherwise;
  }

  set(name, value) {
    if (value === null || value === undefined || value === "") this.state.delete(name);
    else this.state.set(name, String(value));
    this.settings.address.write(new URLSearchParams([...this.state]).toString());
  }

  parts() {
    const overlays = () => {
      const field = this.get("overlays");
      if (field === "off") return null;
      return { field, least: Number(this.get("score", LEAST_SCORE)) };
    };
    this.grid = new Grid({
      overlays,
      open: (position) => this.openDetail(this.items[position], position),
      select: (position, isRange) => this.selection.mark(position, isRange),
      isMarked: (item) => this.selection.items.has(item),
      moved: (first) => {
        clearTimeout(this.resting);
        this.resting = setTimeout(() => this.set("at", first || null), REST_MS);
      },
    });
    this.panel = new Panel({ changed: () => this.filtered(), load: (offer) => this.facet(offer.name) });
    this.scatter = new Scatter({ open: (item) => this.openDetail(item, this.items.indexOf(item)), chosen: (items) => this.lasso(items) });
    this.detail = new Detail({
      overlays,
      step: (by) => this.step(by),
      closed: () => {
        this.set("row", null);
        this.grid.render(true);
      },
      tagged: (row) => this.selection.tagButtons([row]),
    });
    this.place.firstChild.append(this.detail.element);
  }

  /** Show what the address says. */
  async restore() {
    if (!this.store) return;
    this.state = new Map(new URLSearchParams(this.settings.address.read()));
    const names = [...this.store.splits.keys()];
    if (!names.length) throw new Error("this store has no splits.");
    const first = names.find((name) => this.settings.rows?.[name]?.length) ?? names[0];
    this.split = this.store.splits.get(this.get("split")) ?? this.store.splits.get(first);
    const size = Number(this.get("size", 150));
    this.grid.tile = SIZES.includes(size) ? size : 150;
    const view = this.get("view", this.settings.view ?? "images");
    const tabs = this.tabs();
    await this.show(tabs.some(([name]) => name === view) ? view : "images");
    const row = Number(this.get("row", NaN));
    if (Number.isInteger(row) && row >= 0 && row < this.split.rows) {
      this.position = undefined;
      await this.detail.show(this.split, this.list.field, row);
    }
  }

  tabs() {
    const objects = this.split.all("objects").map((name) => [`objects:${name}`, name === "objects" ? "Objects" : `Objects: ${name}`]);
    const tabs = [["images", "Images"], ...objects, ["scatter", "Scatter"]];
    if (pairsOfLabels(this.split).length) tabs.push(["confusion", "Confusion"]);
    if (this.settings.findings) tabs.push(["findings", "Findings"]);
    if (this.settings.runs?.length) tabs.push(["training", "Training"]);
    if (this.settings.notes?.length) tabs.push(["skipped", "Left out"]);
    return tabs;
  }

  get isGrid() {
    return this.view === "images" || this.view.startsWith("objects:");
  }

  /** Show a view. What was begun for an earlier one ends where it waits. */
  async show(view) {
    const turn = (this.turn = {});
    clearInterval(this.live);
    clearTimeout(this.resting);
    const list = await this.listOf(view.startsWith("objects:") ? view.slice(8) : "");
    if (turn !== this.turn) return;
    this.view = view;
    this.set("view", view === (this.settings.view ?? "images") ? null : view);
    this.useList(list);
    this.drawHead();
    const { settings, panel, main } = this;
    if (view === "findings") {
      main.replaceChildren(findingsView(settings.findings, this.store.digest, (...sample) => this.smallPicture(...sample)));
    } else if (view === "skipped") {
      main.replaceChildren(el("ul", { class: "notes" }, ...settings.notes.map((note) => el("li", {}, note))));
    } else if (view === "training") await this.showTraining();
    if (["findings", "skipped", "training"].includes(view)) {
      this.status.replaceChildren();
      return;
    }
    this.content = el("div", { class: "content" });
    main.replaceChildren(el("div", { class: "work" }, el("aside", { "aria-label": "filters" }, panel.element), this.content));
    if (view === "scatter") this.content.append(this.axes(), this.scatter.element);
    if (this.isGrid) {
      this.content.append(this.grid.element);
      const at = Number(this.get("at", 0));
      this.refresh(); // pictures first, then columns
      this.grid.jump(at, false);
      await panel.show(list, this.opened());
      if (turn === this.turn) await this.applyState();
      if (turn === this.turn && at) this.grid.jump(Math.min(at, this.items.length - 1), false);
    } else {
      await panel.show(list, this.opened());
      if (turn === this.turn) await this.applyState();
    }
  }

  /** The images of the split, or the objects of a field of it. */
  async listOf(field) {
    const key = `${this.split.name}/${field}`;
    if (!this.lists.has(key)) {
      const list = field ? await new Objects(this.split, field).open() : new Images(this.split);
      const rows = this.settings.rows && new Set(this.settings.rows[this.split.name]);
      if (rows) list.filters.limit([...Array(list.size).keys()].filter((item) => rows.has(list.row(item))));
      this.lists.set(key, list);
    }
    return this.lists.get(key);
  }

  useList(list) {
    if (this.list !== list) this.selection.items.clear();
    this.list = list;
    this.items = list.filters.passing();
  }

  /** Names of facets whose columns are read at once. */
  opened() {
    const wanted = this.list.offered.filter((offer) => this.state.has(`f.${offer.name}`) || [this.get("sort"), this.get("x"), this.get("y"), this.get("color")].includes(offer.name));
    const isNarrow = this.place.clientWidth < 700;
    const cheap = this.list.size <= MANY && !isNarrow ? this.list.offered.filter((offer) => !offer.isSlow).slice(0, 6) : [];
    return [...new Set([...wanted, ...cheap].map((offer) => offer.name))];
  }

  /** A facet by name, loaded if it is not there. */
  async facet(name) {
    const { list } = this;
    const offer = list.offered.find((each) => each.name === name);
    if (!offer) return null;
    offer.loading ??= offer.load().then((facet) => {
      if (list.filters.facets.length > 30) throw new Error("more than 30 filters are not possible.");
      facet.label = offer.label ?? offer.name;
      return list.filters.add(facet);
    });
    offer.loading.catch(() => (offer.loading = null));
    return offer.loading;
  }

  /** Choose the filters that the address has. */
  async applyState() {
    for (const offer of this.list.offered) {
      const text = this.state.get(`f.${offer.name}`);
      const facet = text === undefined ? this.list.filters.get(offer.name) : await this.facet(offer.name);
      if (!facet) continue;
      const chosen = text === undefined ? null : facet.parsed(text);
      if (String(chosen) !== String(facet.chosen)) this.list.filters.choose(facet, chosen);
    }
    await this.tagFacet();
    this.refresh();
    this.panel.update();
    if (this.view === "scatter") await this.drawScatter();
    if (this.view === "confusion") await this.drawConfusion();
  }

  async tagFacet() {
    const tag = this.get("tag");
    if (!tag) return;
    const rows = this.tags.rows(tag, this.split.name);
    this.list.filters.limit(Array.from({ length: this.list.size }, (_, i) => i).filter((item) => rows.has(this.list.row(item))));
  }

  filtered() {
    for (const facet of this.list.filters.facets) this.set(`f.${facet.name}`, facet.written());
    this.set("at", null);
    this.refresh();
    this.panel.update();
    if (this.view === "scatter") this.drawScatter();
    if (this.view === "confusion") this.drawConfusion();
  }

  /** Filter, sort and show anew. */
  refresh() {
    const { list } = this;
    const text = this.get("sort", "");
    const facet = list.filters.get(text.replace(/^-/, ""));
    this.items = sorted(list.filters.passing(), facet, text.startsWith("-"));
    this.selection.last = undefined;
    if (this.isGrid) this.grid.show(this.items, list);
    this.say();
  }

  say() {
    const { list, items, selection } = this;
    const parts = [`${number(items.length)} of ${number(list.size)} ${list.noun}`];
    if (selection.items.size) parts.push(`${number(selection.items.size)} marked`);
    if (list.filters.extra) parts.push("of a selection");
    if (this.tags.isOther) parts.push("tags of an earlier state of the store are not shown");
    this.status.replaceChildren(el("span", { class: "shown" }, parts.join(", ")), ...selection.buttons());
    this.settings.marked?.(selection.rows());
  }

  lasso(items) {
    if (items && !items.length) return;
    this.list.filters.limit(items);
    this.set("tag", null);
    this.filtered();
  }

  openDetail(item, position) {
    const { list } = this;
    this.position = position;
    const row = list.row(item);
    this.set("row", row);
    const object = list.objects && { field: list.objects, index: item - list.offsets[row] };
    return this.detail.show(this.split, list.field, row, object);
  }

  step(by) {
    const at = this.position ?? this.items.findIndex((item) => this.list.row(item) === this.detail.row);
    const next = at + by;
    if (next < 0 || next >= this.items.length) return;
    this.grid.focus = next;
    this.openDetail(this.items[next], next);
  }

  drawHead() {
    this.head.replaceChildren(...headOf(this));
  }

  async useSplit(name) {
    this.set("split", name);
    for (const key of [...this.state.keys()]) if (/^f\.|^(sort|at|row|tag)$/.test(key)) this.set(key, null);
    this.split = this.store.splits.get(name);
    await this.show(this.tabs().some(([tab]) => tab === this.view) ? this.view : "images");
  }

  async useTag(tag) {
    this.set("tag", tag);
    for (const list of this.lists.values()) list.filters?.limit(null);
    await this.tagFacet();
    this.filtered();
  }

  async sort(name) {
    this.set("sort", name);
    this.set("at", null);
    if (name) await this.panel.open(this.list.offered.find((offer) => offer.name === name.replace(/^-/, "")));
    this.refresh();
    this.grid.jump(0, false);
  }

  resize(size) {
    this.set("size", size === 150 ? null : size);
    this.grid.resize(size);
  }

  redraw(name, value) {
    this.set(name, value);
    this.grid.redraw();
  }

  /** Jump to a row, or to the first key that has a text. */
  async goTo(text) {
    if (/^\d[\d,. ]*$/.test(text)) {
      const row = Number(text.replace(/[,. ]/g, ""));
      const position = this.items.findIndex((item) => this.list.row(item) === row);
      if (position >= 0) return this.grid.jump(position);
      const isThere = row < this.split.rows;
      this.say();
      this.status.prepend(isThere ? `row ${number(row)} does not pass the filters. ` : `the split ${this.split.name} has the rows 0 to ${number(this.split.rows - 1)}. `);
      return undefined;
    }
    const name = this.split.first("key");
    const offer = this.list.offered.find((each) => each.name === name || each.name === `image.${name}`);
    if (!text || !offer) return undefined;
    this.status.textContent = "reading the keys ...";
    const { values } = await this.facet(offer.name);
    const position = this.items.findIndex((item) => values[item].includes(text));
    this.say();
    if (position >= 0) return this.grid.jump(position);
    this.status.textContent = `no key has "${text}".`;
    return undefined;
  }

  axes() {
    const numbers = this.list.offered.filter((offer) => !offer.isMany && offer.name !== this.split.first("key"));
    const options = numbers.map((offer) => [offer.name, offer.label ?? offer.name]);
    const pick = (axis, otherwise) => choice({ x: "across", y: "up", color: "color" }[axis], axis === "color" ? [["", "one"], ...options] : options, this.get(axis, otherwise), (name) => {
      this.set(axis, name);
      this.drawScatter();
    });
    this.defaults = { x: options[0]?.[0], y: options[1]?.[0] ?? options[0]?.[0], color: "" };
    return el("div", { class: "axes" }, pick("x", this.defaults.x), pick("y", this.defaults.y), pick("color", ""));
  }

  async drawScatter() {
    const [x, y, color] = await Promise.all(["x", "y", "color"].map((axis) => {
      const name = this.get(axis, this.defaults[axis]);
      return name ? this.facet(name) : null;
    }));
    this.panel.update();
    if (x && y) this.scatter.show(this.items, x, y, color);
    else this.scatter.note.textContent = "this split has no numbers to show.";
  }

  async drawConfusion() {
    const pairs = pairsOfLabels(this.split);
    const tables = await Promise.all(pairs.map(async ([truth, guess]) => {
      const facets = await Promise.all([this.facet(truth), this.facet(guess)]);
      return confusionTable(this.items, ...facets, (a, b) => {
        this.list.filters.choose(facets[0], [a]);
        this.list.filters.choose(facets[1], [b]);
        for (const facet of facets) this.set(`f.${facet.name}`, facet.written());
        this.show("images");
      });
    }));
    this.content.replaceChildren(...tables);
  }

  /** A tile of a sample in a list of findings. */
  smallPicture(name, row) {
    const split = this.store.splits.get(name);
    const button = el("button", { class: "small", "aria-label": `${name}, row ${row}` });
    const canvas = el("canvas");
    const open = async () => {
      this.split = split;
      this.set("split", name);
      this.useList(await this.listOf(""));
      this.openDetail(row, this.items.indexOf(row));
    };
    button.addEventListener("click", open);
    if (!split) return el("p", { class: "error" }, `no split ${name}`);
    new Images(split).draw(canvas, row, 200, { least: Number(LEAST_SCORE) }).then(() => button.replaceChildren(canvas), (error) => button.replaceChildren(error.message));
    return button;
  }

  async showTraining() {
    const draw = async () => {
      const runs = await Promise.all(this.settings.runs.map(async ({ name, read }) => ({ name, epochs: epochsOf(await read()) })));
      const text = JSON.stringify(runs);
      if (text === this.drawn && this.main.querySelector(".charts")) return;
      this.drawn = text;
      this.main.replaceChildren(curves(runs));
    };
    await draw();
    clearInterval(this.live);
    this.live = setInterval(() => draw().catch((error) => (this.status.textContent = `the run cannot be read: ${error.message}`)), LIVE_MS);
  }
}
