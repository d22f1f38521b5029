// One sample: its picture in any size, all of its fields, and its neighbours.
import { el, number } from "./elements.js";
import { colorOf, countOf, drawObjects, pictureOf } from "./picture.js";
import { drawOver, namesOf, widthOf } from "./items.js";

const MOST_SHOWN = 200;

/** The dialog; `step(by)` moves to a neighbour, `closed()` is called at its end, `link(row)` gives the address. */
export class Detail {
  constructor({ step, closed, overlays, tagged }) {
    Object.assign(this, { step, overlays, tagged });
    this.canvas = el("canvas", { role: "img", "aria-label": "picture" });
    this.stage = el("div", { class: "stage", tabindex: 0, "aria-label": "picture: + and - zoom, 0 fits" }, this.canvas);
    this.side = el("div", { class: "side" });
    this.title = el("h2");
    const button = (text, label, action) => el("button", { "aria-label": label, title: label, onclick: action }, text);
    const bar = el("div", { class: "bar-top" }, this.title, button("\u2190", "previous", () => step(-1)), button("\u2192", "next", () => step(1)), button("\u00d7", "close", () => this.element.close()));
    this.element = el("dialog", { class: "detail", "aria-label": "sample" }, bar, el("div", { class: "both" }, this.stage, this.side));
    this.element.addEventListener("close", closed);
    this.element.addEventListener("keydown", (event) => this.pressed(event));
    this.stage.addEventListener("wheel", (event) => this.wheeled(event), { passive: false });
    this.drag();
  }

  async show(split, field, row, object) {
    Object.assign(this, { split, field, row, object });
    if (!this.element.open) this.element.showModal();
    this.title.textContent = `${split.name}, row ${row.toLocaleString("en")}`;
    const turn = (this.turn = {});
    this.side.replaceChildren(el("p", { class: "quiet" }, "loading ..."));
    const [picture, fields] = await Promise.allSettled([pictureOf(split, field, row), this.fields(split, row)]);
    if (turn !== this.turn) return;
    this.side.replaceChildren(...(this.tagged ? [this.tagged(row)] : []));
    if (picture.status === "fulfilled") {
      this.picture = picture.value;
      this.fit();
    } else {
      this.picture = null;
      this.canvas.width = this.canvas.height = 1;
      this.side.append(el("p", { class: "error" }, picture.reason.message));
    }
    this.side.append(fields.status === "fulfilled" ? fields.value : el("p", { class: "error" }, fields.reason.message));
  }

  fit() {
    const { clientWidth, clientHeight } = this.stage;
    this.zoom = Math.min(clientWidth / this.picture.width, clientHeight / this.picture.height) || 1;
    if (this.zoom > 1) this.zoom = Math.max(1, Math.min(Math.floor(this.zoom), 32));
    this.paint();
  }

  /** Draw in the size of the zoom. Overlays are drawn in that size, so that lines stay thin. */
  async paint() {
    const { picture, canvas, zoom, turn } = this;
    const ratio = Math.min(window.devicePixelRatio || 1, 4096 / (Math.max(picture.width, picture.height) * zoom));
    const made = document.createElement("canvas");
    made.width = Math.max(1, Math.round(picture.width * zoom * ratio));
    made.height = Math.max(1, Math.round(picture.height * zoom * ratio));
    const context = made.getContext("2d");
    context.imageSmoothingEnabled = zoom < 2;
    context.drawImage(picture, 0, 0, made.width, made.height);
    const shown = zoom * ratio * (picture.width / (await widthOf(this.split, this.field, this.row, picture)));
    await drawOver(made, this.split, this.field, this.row, shown, this.overlays()).catch(() => {});
    if (this.object !== undefined && this.overlays()) {
      const { field, index } = this.object;
      const values = await this.split.objects(field, this.row);
      context.lineWidth = 6;
      context.shadowColor = "#fff";
      context.shadowBlur = 14;
      drawObjects(context, values, this.split.fields[field], shown, { only: index });
    }
    if (turn !== this.turn || zoom !== this.zoom) return;
    canvas.width = made.width;
    canvas.height = made.height;
    canvas.style.width = `${picture.width * zoom}px`;
    canvas.style.height = `${picture.height * zoom}px`;
    canvas.getContext("2d").drawImage(made, 0, 0);
    canvas.setAttribute("aria-label", `picture of ${picture.width} by ${picture.height} pixels`);
  }

  wheeled(event) {
    event.preventDefault();
    this.zoomBy(event.deltaY < 0 ? 1.25 : 0.8);
  }

  zoomBy(factor) {
    if (!this.picture) return;
    this.zoom = Math.min(64, Math.max(0.02, this.zoom * factor));
    this.paint();
  }

  drag() {
    let from = null;
    this.stage.addEventListener("pointerdown", (event) => {
      from = [event.clientX + this.stage.scrollLeft, event.clientY + this.stage.scrollTop];
      this.stage.setPointerCapture(event.pointerId);
    });
    this.stage.addEventListener("pointermove", (event) => from && this.stage.scrollTo(from[0] - event.clientX, from[1] - event.clientY));
    this.stage.addEventListener("pointerup", () => (from = null));
  }

  pressed(event) {
    if (event.target.tagName === "INPUT") return;
    const actions = { ArrowLeft: () => this.step(-1), ArrowRight: () => this.step(1), "+": () => this.zoomBy(1.25), "-": () => this.zoomBy(0.8), 0: () => this.picture && this.fit(), 1: () => this.zoomBy(1 / this.zoom) };
    if (actions[event.key]) {
      event.preventDefault();
      actions[event.key]();
    }
  }

  /** All fields of the row as a list. */
  async fields(split, row) {
    const list = el("dl");
    for (const [name, spec] of Object.entries(split.fields)) {
      const shown = await describe(split, name, spec, row).catch((error) => el("span", { class: "error" }, error.message));
      list.append(el("dt", {}, name), el("dd", {}, shown));
    }
    for (const name of Object.keys(split.manifest.fields)) {
      if (!split.fields[name]) list.append(el("dt", {}, name), el("dd", { class: "quiet" }, "this page cannot read this field"));
    }
    return list;
  }
}

async function describe(split, name, spec, row) {
  if (spec.kind === "key") return el("span", { class: "key" }, await split.text(name, row));
  if (spec.kind === "text") return el("span", {}, ...(await split.texts(name, row)).map((text) => el("p", {}, text)));
  if (spec.kind === "label") {
    const label = (await split.fixed(name, row))[0];
    return label < 0 ? "no label" : `${spec.classes[label] ?? "?"} (${label})`;
  }
  if (spec.kind === "labels") {
    const numbers = await split.fixed(name, row);
    const unknown = numbers.filter((value) => value < 0).length;
    return namesOf(spec.classes, numbers) + (unknown ? `; ${number(unknown)} unknown` : "");
  }
  if (spec.kind === "size") {
    const [height, width] = await split.fixed(name, row);
    return `${width} x ${height} pixels originally`;
  }
  if (spec.kind === "image") {
    const [height, width, channels] = spec.values ? await split.value(name, "shape", row) : spec.shape;
    return `${width} x ${height}, ${channels === 1 ? "1 channel" : `${channels} channels`}, ${spec.encoding}`;
  }
  if (spec.kind === "mask") return `classes: ${spec.classes.length}`;
  if (spec.kind === "objects") return objectsTable(await split.objects(name, row), spec);
  if (spec.values) return "a table";
  const values = await split.fixed(name, row);
  const text = Array.from(values.subarray(0, 12), number).join(", ");
  return values.length > 12 ? `${text}, ... (${number(values.length)} numbers)` : text;
}

function objectsTable(values, spec) {
  const count = countOf(values, spec);
  const table = el("table", {}, el("caption", {}, `${number(count)} objects`));
  for (let i = 0; i < Math.min(count, MOST_SHOWN); i++) {
    const label = values.labels?.[i];
    const swatch = el("span", { class: "swatch" });
    swatch.style.background = colorOf(label ?? 0);
    const box = values.boxes ? Array.from(values.boxes.subarray(4 * i, 4 * i + 4), (value) => Math.round(value * 10) / 10).join(" ") : "";
    const flags = ["difficult", "truncated", "occluded", "iscrowd"].filter((flag) => values[flag]?.[i]).join(", ");
    const score = values.scores ? values.scores[i].toFixed(2) : "";
    table.append(el("tr", {}, el("td", {}, swatch, spec.classes?.[label] ?? String(label ?? i)), el("td", {}, score), el("td", { class: "box" }, box), el("td", {}, flags)));
  }
  return table;
}
