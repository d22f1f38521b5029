// What the grid shows: the images of a split, or its objects; with their facets and their pictures.
import { Facet, Filters } from "./filters.js";
import { colorOf, cornersOf, drawMask, drawObjects, maskOfRuns, pictureOf, rgbOf } from "./picture.js";
import { matchRows } from "./matching.js";

/** Values of a facet that can be loaded: `{name, label, kind, load}`; those with `isCheap` are loaded at once. */
function facetsOfImages(split) {
  const found = [];
  const { fields } = split;
  for (const name of split.all("label")) {
    found.push({ name, load: async () => new Facet(name, "class", await labels(split, name), { names: fields[name].classes }) });
  }
  for (const name of split.all("labels")) {
    const load = async () => new ManyFacet(name, ...appliesTo(await split.column(name), fields[name].classes.length), fields[name].classes, name);
    found.push({ name, load, isMany: true });
  }
  for (const name of split.all("objects")) {
    const label = name === "objects" ? "number of objects" : `number of ${name}`;
    const id = `${name}.count`;
    found.push({ name: id, label, load: async () => new Facet(id, "number", differences(await split.column(name, "offsets")), { label }) });
    if (fields[name].values.labels && fields[name].classes) {
      const has = `${name}.classes`;
      found.push({ name: has, label: name === "objects" ? "images with" : `${name}: images with`, load: () => hasClasses(split, name, has), isMany: true });
    }
  }
  for (const name of split.all("size")) {
    for (const [id, index] of [["height", 0], ["width", 1]]) {
      found.push({ name: id, load: async () => new Facet(id, "number", every(await split.column(name), 2, index)) });
    }
  }
  for (const name of Object.keys(fields)) {
    if (fields[name].kind === "array" && fields[name].shape?.every((length) => length === 1)) {
      found.push({ name, load: async () => new Facet(name, "number", await split.column(name)) });
    }
  }
  const [truth, guess] = pairOfObjects(split);
  for (const what of guess ? ["right", "wrong", "missed"] : []) {
    const id = `${guess}.${what}`;
    const load = async () => new Facet(id, "number", (await matchRows(split, truth, guess))[what], { label: `${what} predictions` });
    found.push({ name: id, label: `${what} predictions`, load, isSlow: true });
  }
  const key = split.first("key");
  if (key) found.push({ name: key, load: async () => new Facet(key, "text", await keys(split, key)), isSlow: true });
  return found;
}

/** The fields of objects that are the truth and predictions of it, if there are both. */
function pairOfObjects(split) {
  const all = split.all("objects");
  const guess = all.find((name) => split.fields[name].values.scores && split.fields[name].values.boxes);
  const truth = all.find((name) => name !== guess && split.fields[name].values.boxes);
  return guess && truth ? [truth, guess] : [];
}

async function labels(split, field, value) {
  const found = await split.column(field, value);
  return found instanceof Float64Array ? Int32Array.from(found) : found;
}

const every = (values, step, index) => Float64Array.from({ length: values.length / step }, (_, i) => values[step * i + index]);

function differences(offsets) {
  return Int32Array.from({ length: offsets.length - 1 }, (_, i) => offsets[i + 1] - offsets[i]);
}

async function hasClasses(split, name, id) {
  const [offsets, found] = await Promise.all([split.column(name, "offsets"), labels(split, name, "labels")]);
  const names = split.fields[name].classes;
  // One class of each image is its value; images of several have a set, of which bars and tests count each.
  return new ManyFacet(id, offsets, found, names, name === "objects" ? "images with" : `${name}: images with`);
}

/** Where the classes of each image begin, and the classes that apply, from a number for each class of each image. */
function appliesTo(numbers, count) {
  const offsets = new Float64Array(numbers.length / count + 1);
  const found = [];
  for (let row = 0; row < offsets.length - 1; row++) {
    for (let label = 0; label < count; label++) if (numbers[row * count + label] > 0) found.push(label);
    offsets[row + 1] = found.length;
  }
  return [offsets, Int32Array.from(found)];
}

/** A facet of which an item has any number of values. */
class ManyFacet extends Facet {
  constructor(name, offsets, labels, names, label) {
    super(name, "class", labels, { names, label });
    this.offsets = offsets;
    this.isMany = true;
  }

  passing() {
    const { offsets, values } = this;
    const wanted = this.wanted();
    const out = new Uint8Array(offsets.length - 1);
    for (let i = 0; i < out.length; i++) {
      if (offsets[i] === offsets[i + 1]) out[i] = wanted[0];
      for (let j = offsets[i]; j < offsets[i + 1] && !out[i]; j++) out[i] = wanted[values[j] + 1] ?? 0;
    }
    return out;
  }

  tally(isIn) {
    const { offsets, values } = this;
    const found = new Uint32Array(this.names.length + 1);
    const seen = new Int32Array(this.names.length).fill(-1); // the last item with each class
    for (let i = 0; i < isIn.length; i++) {
      if (!isIn[i]) continue;
      if (offsets[i] === offsets[i + 1]) found[0] += 1;
      for (let j = offsets[i]; j < offsets[i + 1]; j++) {
        if (seen[values[j]] !== i) found[values[j] + 1] += 1;
        seen[values[j]] = i;
      }
    }
    return found;
  }
}

async function keys(split, field) {
  const [offsets, bytes] = await Promise.all([split.column(field, "offsets"), split.column(field, "bytes")]);
  const decoder = new TextDecoder();
  return Array.from({ length: offsets.length - 1 }, (_, i) => decoder.decode(bytes.subarray(offsets[i], offsets[i + 1])));
}

/** The images of a split. */
export class Images {
  constructor(split) {
    this.split = split;
    this.size = split.rows;
    this.noun = "images";
    this.filters = new Filters(this.size);
    this.offered = facetsOfImages(split);
    this.field = split.first("image");
  }

  row(item) {
    return item;
  }

  /** Draw an item onto a canvas of a size; a token that changes meanwhile ends it. */
  async draw(canvas, item, most, overlays) {
    const { split, field } = this;
    const picture = await pictureOf(split, field, item, most);
    const scale = await sizeOn(canvas, picture, most);
    await drawOver(canvas, split, field, item, scale * (picture.width / (await widthOf(split, field, item, picture))), overlays);
    picture.close();
  }

  caption(item) {
    return captionOf(this.split, item);
  }
}

/** The objects of a field of a split, each a tile. */
export class Objects {
  constructor(split, field) {
    this.split = split;
    this.objects = field;
    this.spec = split.fields[field];
    this.noun = field === "objects" ? "objects" : `objects of ${field}`;
    this.field = this.spec.image ?? "image";
    this.margin = 0.25;
  }

  /** Load where the objects of each row are. */
  async open() {
    this.offsets = await this.split.column(this.objects, "offsets");
    this.size = this.offsets[this.offsets.length - 1];
    this.filters = new Filters(this.size);
    this.parents = new Uint32Array(this.size);
    for (let row = 0; row + 1 < this.offsets.length; row++) this.parents.fill(row, this.offsets[row], this.offsets[row + 1]);
    const { split, objects, spec } = this;
    const number = (name, of, value, width) => ({ name, load: async () => new Facet(name, "number", of(await split.column(objects, value), width)) });
    this.offered = [];
    if (spec.values.labels && spec.classes) {
      this.offered.push({ name: "object.class", label: "class", load: async () => new Facet("object.class", "class", await labels(split, objects, "labels"), { names: spec.classes }) });
    }
    if (spec.values.boxes) {
      const sides = (pick) => (boxes) => Float64Array.from({ length: boxes.length / 4 }, (_, i) => pick(boxes[4 * i + 2] - boxes[4 * i], boxes[4 * i + 3] - boxes[4 * i + 1]));
      this.offered.push(number("box size", sides((w, h) => Math.sqrt(w * h)), "boxes"));
      this.offered.push(number("box width", sides((w) => w), "boxes"), number("box height", sides((_, h) => h), "boxes"));
      this.offered.push(number("aspect ratio", sides((w, h) => w / h), "boxes"));
    }
    for (const [name, value] of Object.entries(spec.values)) {
      if (!value.ragged && !value.shape?.length && name !== "labels") this.offered.push(number(name, (values) => values, name));
    }
    for (const facet of facetsOfImages(split)) {
      if (facet.isMany) continue;
      const load = async () => {
        const made = await facet.load();
        const picked = made.kind === "text" ? Array.from(this.parents, (row) => made.values[row]) : made.values.constructor.from(this.parents, (row) => made.values[row]);
        return new Facet(`image.${made.name}`, made.kind, picked, { names: made.names, label: `image: ${made.label}` });
      };
      this.offered.push({ ...facet, name: `image.${facet.name}`, label: `image: ${facet.label ?? facet.name}`, load, isSlow: true });
    }
    return this;
  }

  row(item) {
    return this.parents[item];
  }

  async draw(canvas, item, most, overlays) {
    const { split, objects, field } = this;
    const row = this.parents[item];
    const [picture, values] = await Promise.all([pictureOf(split, field, row), split.objects(objects, row)]);
    const index = item - this.offsets[row];
    const [x1, y1, x2, y2] = boxOf(values, index, this.spec);
    const shown = picture.width / (await widthOf(split, field, row, picture));
    const room = this.margin * Math.max(x2 - x1, y2 - y1, 8);
    const [left, top] = [Math.max(0, x1 - room) * shown, Math.max(0, y1 - room) * shown];
    const [width, height] = [Math.max(1, Math.min(picture.width, (x2 + room) * shown) - left), Math.max(1, Math.min(picture.height, (y2 + room) * shown) - top)];
    const scale = most / Math.max(width, height);
    canvas.width = Math.max(1, Math.round(width * scale));
    canvas.height = Math.max(1, Math.round(height * scale));
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = scale < 3;
    context.drawImage(picture, left, top, width, height, 0, 0, canvas.width, canvas.height);
    picture.close();
    context.translate(-left * scale, -top * scale);
    if (overlays) drawObjects(context, values, this.spec, scale * shown, { only: index, names: false });
  }

  async caption(item) {
    const { split, objects, spec } = this;
    const row = this.parents[item];
    const index = item - this.offsets[row];
    const [found, score] = await Promise.all(["labels", "scores"].map((name) => spec.values[name] && split.value(objects, name, row)));
    const label = found && (spec.classes?.[found[index]] ?? String(found[index]));
    return [label, score?.[index].toFixed(2)].filter(Boolean).join(" ") || `row ${row}`;
  }
}

function boxOf(values, index, spec) {
  if (values.boxes) return values.boxes.subarray(4 * index, 4 * index + 4);
  let points = [0, 0, 1, 1];
  const oriented = values.oriented_boxes?.subarray(5 * index, 5 * index + 5);
  const step = values.keypoints ? 2 * spec.values.keypoints.shape[0] : 0;
  if (oriented?.every(Number.isFinite)) points = cornersOf(oriented).flat();
  else if (step) points = Array.from(values.keypoints.subarray(step * index, step * (index + 1)));
  const [xs, ys] = [0, 1].map((odd) => points.filter((value, i) => i % 2 === odd && Number.isFinite(value)));
  return xs.length && ys.length ? [Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)] : [0, 0, 1, 1];
}

/** The stored width of an image whose picture may be smaller. */
export async function widthOf(split, field, row, picture) {
  const spec = split.fields[field];
  if (!spec.values) return spec.shape[1];
  return (await split.value(field, "shape", row))[1] ?? picture.width;
}

/** Size a canvas and draw a picture onto it; how many canvas pixels one of the picture is. */
async function sizeOn(canvas, picture, most) {
  const scale = most / Math.max(picture.width, picture.height);
  canvas.width = Math.max(1, Math.round(picture.width * scale));
  canvas.height = Math.max(1, Math.round(picture.height * scale));
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = scale < 3;
  context.imageSmoothingQuality = "high";
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  return scale;
}

/** Masks and objects over a picture. `overlays`: null for none, else `{field, least}`: the only field of objects, if there is one, and the least score. */
export async function drawOver(canvas, split, field, row, scale, overlays) {
  if (!overlays) return;
  const context = canvas.getContext("2d");
  for (const name of split.all("mask")) {
    const spec = split.fields[name];
    if (spec.shape && (spec.image ?? "image") === field) await drawMask(context, await split.fixed(name, row), spec.shape, spec);
  }
  const [, guess] = pairOfObjects(split);
  for (const name of split.all("objects")) {
    const spec = split.fields[name];
    if ((spec.image ?? "image") !== field || (overlays.field && overlays.field !== name)) continue;
    const values = await split.objects(name, row);
    if (values.rle?.some((runs) => runs.length)) await drawRuns(context, values, split, field, row);
    drawObjects(context, values, spec, scale, { dashed: name === guess, least: overlays.least });
  }
}

async function drawRuns(context, values, split, field, row) {
  const spec = split.fields[field];
  const [height, width] = spec.values ? await split.value(field, "shape", row) : spec.shape;
  for (const [i, runs] of values.rle.entries()) {
    if (!runs.length) continue;
    const pixels = maskOfRuns(runs, height, width);
    const out = new Uint8ClampedArray(4 * pixels.length);
    const color = rgbOf(colorOf(values.labels?.[i] ?? 0));
    pixels.forEach((inside, at) => inside && out.set([...color, 90], 4 * at));
    context.drawImage(await createImageBitmap(new ImageData(out, width, height)), 0, 0, context.canvas.width, context.canvas.height);
  }
}

/** The names of the classes that apply to an image. */
export function namesOf(classes, numbers) {
  return classes.filter((_, label) => numbers[label] > 0).join(", ") || "no label";
}

async function captionOf(split, row) {
  const name = split.first("label");
  if (name) {
    const label = (await split.fixed(name, row))[0];
    return split.fields[name].classes[label] ?? "no label";
  }
  const several = split.first("labels");
  if (several) return namesOf(split.fields[several].classes, await split.fixed(several, row));
  return `row ${row.toLocaleString("en")}`;
}
