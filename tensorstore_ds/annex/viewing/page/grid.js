// A grid of any number of items: only what is seen has elements, and scrolling is scaled beyond what browsers can.
import { el } from "./elements.js";

const MOST_HEIGHT = 8e6; // browsers cap the height of an element at 17 to 33 million pixels
const GAP = 8;
const CAPTION = 20;
const KEPT_BYTES = 96e6; // of pictures of tiles that are kept, drawn

/**
 * `open(position)` is called when a tile is opened, `select(item, isRange)` when it is marked.
 * `show(items, list)`: items of a list of `Images` or `Objects`, in order.
 */
export class Grid {
  constructor({ open, select, isMarked, overlays, moved }) {
    Object.assign(this, { open, select, isMarked, overlays, moved });
    this.items = new Uint32Array(0);
    this.tile = 150;
    this.top = 0;
    this.focus = 0;
    this.tiles = new Map();
    this.pictures = new Map();
    this.spacer = el("div", { class: "spacer" });
    this.element = el("div", { class: "grid", role: "grid", tabindex: -1, "aria-label": "samples" }, this.spacer);
    this.element.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.element.addEventListener("wheel", (event) => this.wheeled(event), { passive: false });
    this.element.addEventListener("keydown", (event) => this.pressed(event));
    new ResizeObserver(() => this.layout()).observe(this.element);
  }

  show(items, list) {
    const isSame = this.list === list;
    this.items = items;
    if (!isSame) this.pictures.clear();
    this.list = list;
    for (const tile of this.tiles.values()) tile.element.remove();
    this.tiles.clear();
    this.focus = Math.min(this.focus, Math.max(0, items.length - 1));
    this.element.setAttribute("aria-rowcount", items.length);
    this.element.classList.toggle("empty", !items.length);
    this.layout();
  }

  resize(size) {
    this.tile = size;
    this.pictures.clear();
    for (const tile of this.tiles.values()) tile.element.remove();
    this.tiles.clear();
    this.layout();
  }

  redraw() {
    this.resize(this.tile);
  }

  layout() {
    const width = this.element.clientWidth;
    if (!width) return;
    const anchor = this.columns ? this.first() : 0;
    this.columns = Math.max(1, Math.floor((width - GAP) / (this.tile + GAP)));
    this.height = this.tile + CAPTION + GAP;
    this.total = Math.ceil(this.items.length / this.columns) * this.height + GAP;
    this.scale = Math.max(1, this.total / MOST_HEIGHT);
    this.spacer.style.height = `${this.total / this.scale}px`;
    this.jump(Math.min(anchor, this.items.length - 1), false);
  }

  first() {
    return Math.floor((this.top + this.height / 2) / this.height) * this.columns;
  }

  get room() {
    return Math.max(0, this.total - this.element.clientHeight);
  }

  /** Scroll so that a position is seen. */
  jump(position, isFocused = true) {
    if (isFocused) this.focus = position;
    this.go(Math.floor(Math.max(0, position) / this.columns) * this.height);
    if (isFocused) this.render(true);
  }

  go(top) {
    this.top = Math.min(Math.max(0, top), this.room);
    const most = Math.max(1, this.element.scrollHeight - this.element.clientHeight);
    this.placed = this.scale > 1 ? (this.top / (this.room || 1)) * most : this.top;
    this.element.scrollTop = this.placed;
    this.render();
  }

  scrolled() {
    const at = this.element.scrollTop;
    if (Math.abs(at - this.placed) < 1.5) return;
    const most = Math.max(1, this.element.scrollHeight - this.element.clientHeight);
    this.top = this.scale > 1 ? (at / most) * this.room : at;
    this.placed = at;
    this.render();
  }

  /** With scaled scrolling, a wheel still moves by pixels. */
  wheeled(event) {
    if (this.scale === 1 || event.ctrlKey) return;
    event.preventDefault();
    this.go(this.top + event.deltaY * [1, 20, this.element.clientHeight][event.deltaMode]);
  }

  render(isFocused = false) {
    if (!this.columns) return;
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => {
      const { clientHeight } = this.element;
      const from = Math.max(0, Math.floor(this.top / this.height) - 1) * this.columns;
      const to = Math.min(this.items.length, (Math.ceil((this.top + clientHeight) / this.height) + 1) * this.columns);
      for (const [position, tile] of this.tiles) {
        if (position >= from && position < to) continue;
        tile.element.remove();
        this.tiles.delete(position);
      }
      for (let position = from; position < to; position++) this.place(position);
      this.moved?.(this.first(), to - from);
      if (isFocused) this.tiles.get(this.focus)?.element.focus({ preventScroll: true });
    });
  }

  place(position) {
    let tile = this.tiles.get(position);
    if (!tile) {
      tile = this.make(position);
      this.tiles.set(position, tile);
      this.spacer.append(tile.element);
    }
    const x = GAP + (position % this.columns) * (this.tile + GAP);
    const y = GAP + Math.floor(position / this.columns) * this.height - this.top + this.placed;
    tile.element.style.transform = `translate(${x}px, ${y}px)`;
    tile.element.tabIndex = position === this.focus ? 0 : -1;
    tile.element.setAttribute("aria-selected", this.isMarked(this.items[position]));
  }

  make(position) {
    const item = this.items[position];
    const caption = el("span", { class: "caption" });
    const frame = el("span", { class: "frame" });
    const element = el("div", { class: "tile", role: "gridcell", "aria-label": `item ${item}`, "data-item": item }, frame, caption);
    element.style.width = frame.style.width = frame.style.height = `${this.tile}px`;
    element.style.height = `${this.tile + CAPTION}px`;
    element.addEventListener("focus", () => (this.focus = position));
    element.addEventListener("click", (event) => {
      this.focus = position;
      if (event.ctrlKey || event.metaKey || event.shiftKey) this.select(position, event.shiftKey);
      else this.open(position);
      this.render();
    });
    this.fill(item, frame, caption, element);
    return { element };
  }

  async fill(item, frame, caption, element) {
    const { list } = this;
    let made = this.pictures.get(item);
    if (!made) {
      const canvas = document.createElement("canvas");
      const most = Math.round(this.tile * Math.min(2, window.devicePixelRatio || 1));
      made = { canvas, ready: list.draw(canvas, item, most, this.overlays()), text: list.caption(item) };
      made.text.catch(() => {});
      this.pictures.set(item, made);
      if (this.pictures.size > KEPT_BYTES / (4 * most * most)) this.pictures.delete(this.pictures.keys().next().value);
    }
    try {
      await made.ready;
      frame.replaceChildren(made.canvas);
    } catch (error) {
      this.pictures.delete(item);
      frame.replaceChildren(el("span", { class: "broken" }, error.message));
    }
    try {
      caption.textContent = await made.text;
      element.setAttribute("aria-label", `${caption.textContent}, ${list.noun.replace(/s$/, "")} ${item}`);
    } catch (error) {
      caption.textContent = error.message;
    }
  }

  pressed(event) {
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.height)) * this.columns;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.columns, ArrowUp: -this.columns, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in steps) {
      event.preventDefault();
      this.focus = Math.min(Math.max(0, this.focus + steps[event.key]), this.items.length - 1);
      const top = Math.floor(this.focus / this.columns) * this.height;
      if (top < this.top) this.go(top);
      else if (top + this.height > this.top + this.element.clientHeight) this.go(top + this.height - this.element.clientHeight);
      this.render(true);
    } else if (event.key === "Enter") {
      this.open(this.focus);
    } else if (event.key === " ") {
      event.preventDefault();
      this.select(this.focus, event.shiftKey);
      this.render(true);
    }
  }
}
