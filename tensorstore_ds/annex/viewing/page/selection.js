// Marked items: what is done with them, and with what passes the filters.
import { el } from "./elements.js";
import { filterLine, saveRows } from "./tags.js";

/** The items of a viewer that are marked. */
export class Selection {
  constructor(viewer) {
    this.viewer = viewer;
    this.items = new Set();
    this.last = undefined; // the position that was marked last, from which a range goes
  }

  /** Mark an item or take its mark away; with `isRange`, mark all from the last one. */
  mark(position, isRange) {
    const { viewer, items } = this;
    const from = isRange && this.last !== undefined ? this.last : position;
    const isOn = isRange || !items.has(viewer.items[position]);
    for (let i = Math.min(from, position); i <= Math.max(from, position); i++) isOn ? items.add(viewer.items[i]) : items.delete(viewer.items[i]);
    this.last = position;
    this.changed();
  }

  clear() {
    this.items.clear();
    this.changed();
  }

  changed() {
    this.viewer.grid.render();
    this.viewer.say();
  }

  /** The rows of the marked items, each once, in order. */
  rows() {
    return this.rowsOf(this.items);
  }

  rowsOf(items) {
    return [...new Set(Array.from(items, (item) => this.viewer.list.row(item)))].sort((a, b) => a - b);
  }

  /** Buttons for the marked rows, or else for those that pass the filters, if they are not all. */
  buttons() {
    const { viewer, items } = this;
    const { list, split, store, settings } = viewer;
    const rows = () => this.rowsOf(items.size ? items : viewer.items);
    const button = (text, action) => el("button", { onclick: action }, text);
    const line = filterLine(settings.path ?? "STORE.tsds");
    const found = [];
    if (list.filters.extra) found.push(button("all again", () => viewer.lasso(null)));
    if (items.size) found.push(button("unmark", () => this.clear()), this.tagButtons(rows()));
    if (items.size || viewer.items.length < list.size) {
      found.push(button("rows.json", () => saveRows(split.name, rows(), store.digest)));
      found.push(el("code", { title: "writes a store without the rows of rows.json" }, line));
      found.push(button("copy", () => navigator.clipboard?.writeText(line)));
    }
    return found;
  }

  /** Buttons that set tags of rows, and remove them. */
  tagButtons(rows) {
    const { viewer } = this;
    const { tags, split } = viewer;
    const names = [...new Set(["wrong", "look again", ...tags.names()])];
    const group = el("span", { class: "tags", role: "group", "aria-label": "tags" });
    const draw = () => group.replaceChildren(
      ...names.map((tag) => {
        const isOn = rows.every((row) => tags.has(tag, split.name, row));
        return el("button", { "aria-pressed": isOn, onclick: () => change(tag, !isOn) }, tag);
      }),
      el("input", { placeholder: "new tag", "aria-label": "new tag", maxlength: 40, onchange: (event) => change(event.target.value.trim(), true) }),
    );
    const change = async (tag, isOn) => {
      if (!tag) return;
      try {
        await tags.set(tag, split.name, rows, isOn);
        if (!names.includes(tag)) names.push(tag);
        draw();
        viewer.drawHead();
      } catch (error) {
        group.append(el("span", { class: "error" }, error.message));
      }
    };
    draw();
    return group;
  }
}
