// The viewer in a notebook, as a module of anywidget: its bytes come as messages from the kernel.
import { el } from "./elements.js";
import { Source } from "./source.js";
import { Viewer } from "./viewer.js";

const PIECE = 4 * 1024 * 1024; // bytes that widget.py answers at most
const AT_A_TIME = 16; // requests; more of them would wait in the kernel, where cells wait as well
const SAVE_MS = 250;
const CLIENT = crypto.getRandomValues(new Uint32Array(4)).join("-"); // every page that shows the widget gets all answers
let asked = 0;
let isOurs = false; // while a view of this widget writes the state

/** Requests to the kernel of a model. */
class Kernel {
  constructor(model) {
    this.model = model;
    this.waiting = new Map();
    this.later = [];
    this.answered = (answer, buffers) => this.take(answer, buffers);
    model.on("msg:custom", this.answered);
  }

  close() {
    this.model.off("msg:custom", this.answered);
  }

  ask(request) {
    return new Promise((resolve, reject) => {
      this.later.push({ request, resolve, reject });
      this.next();
    });
  }

  next() {
    while (this.later.length && this.waiting.size < AT_A_TIME) {
      const { request, ...settle } = this.later.shift();
      asked += 1;
      const id = `${CLIENT}-${asked}`;
      this.waiting.set(id, settle);
      this.model.send({ ...request, id });
    }
  }

  take({ id, error, size }, buffers) {
    const settle = this.waiting.get(id);
    if (!settle) return;
    this.waiting.delete(id);
    this.next();
    const found = buffers?.[0];
    if (error) settle.reject(new Error(error));
    else settle.resolve({ size, bytes: found && new Uint8Array(found.buffer ?? found, found.byteOffset ?? 0, found.byteLength) });
  }

  /** The bytes [start, stop) of a file, one piece after another. */
  async range(path, start, stop) {
    const out = new Uint8Array(stop - start);
    let at = start;
    while (at < stop) {
      const { bytes } = await this.ask({ path, start: at, stop: Math.min(stop, at + PIECE) });
      if (!bytes.length) break;
      out.set(bytes, at - start);
      at += bytes.length;
    }
    return out.subarray(0, at - start);
  }

  async whole(path) {
    const { size, bytes } = await this.ask({ path, start: 0, stop: PIECE });
    if (size <= bytes.length) return bytes;
    const out = new Uint8Array(size);
    out.set(bytes);
    const rest = await this.range(path, bytes.length, size);
    if (bytes.length + rest.length < size) throw new Error(`${path}: cut short, expected ${size} bytes`);
    out.set(rest, bytes.length);
    return out;
  }

  async text(path) {
    return new TextDecoder().decode(await this.whole(path));
  }
}

/** The text of the view and the marked rows as traits of the model, saved when they rest. */
function traits(model) {
  let timer;
  const write = (name, value) => {
    isOurs = true;
    model.set(name, value);
    isOurs = false;
    clearTimeout(timer);
    timer = setTimeout(() => model.save_changes(), SAVE_MS);
  };
  return {
    address: { read: () => model.get("view"), write: (text) => text !== model.get("view") && write("view", text) },
    marked: (rows) => String(rows) !== String(model.get("rows")) && write("rows", rows),
  };
}

/** The settings of the viewer, as `main.js` reads them from view.json. */
async function settingsOf(model, kernel) {
  const { store, title, tags, findings, runs, notes, path } = model.get("_settings");
  const source = store && new Source({
    range: (name, first, end) => kernel.range(store + name, first, end),
    whole: (name) => kernel.whole(store + name),
  });
  const server = tags
    ? { read: async () => JSON.parse(await kernel.text(tags)), write: (content) => kernel.ask({ path: tags, text: JSON.stringify(content) }) }
    : { read: async () => null, write: async () => {} }; // tags are kept as long as the view
  return {
    source, server, title, notes, path, ...traits(model),
    findings: findings ? JSON.parse(await kernel.text(findings)) : null,
    runs: runs.map((run) => ({ name: run.name, read: () => kernel.text(run.url) })),
  };
}

function render({ model, el: place }) {
  const kernel = new Kernel(model);
  const failed = (error) => place.replaceChildren(el("div", { class: "viewer" }, el("p", { class: "error", role: "alert" }, error.message)));
  const opened = settingsOf(model, kernel).then(async (settings) => {
    const viewer = new Viewer(place, settings);
    await viewer.open();
    return viewer;
  });
  opened.catch(failed);
  const resized = () => place.style.setProperty("--height", `${model.get("height")}px`);
  const changed = () => isOurs || opened.then((viewer) => viewer.restore()).catch(failed);
  resized();
  place.dataset.lmSuppressShortcuts = "true"; // keys of the viewer are no commands of JupyterLab
  place.addEventListener("keydown", (event) => event.stopPropagation()); // nor of other notebooks
  model.on("change:height", resized);
  model.on("change:view", changed);
  return () => {
    kernel.close();
    model.off("change:height", resized);
    model.off("change:view", changed);
    opened.then((viewer) => clearInterval(viewer.live), () => {});
  };
}

export default { render };
