// Pictures of samples: pixels of any encoding, and what is drawn over them.

const COLORS = ["#ff4b4b", "#2f9bff", "#22c55e", "#ffb020", "#b66dff", "#00c2c7", "#ff6fb5", "#8bd300", "#ff8a3d", "#6b7cff", "#d6b400", "#00a67d"];
const MOST_PIXELS = 2 ** 28;
const BACKGROUND = ["background", "bg", "unlabeled", "unlabelled"];

/** The color of a class, the same as in `tsds preview`. */
export function colorOf(label) {
  if (label < 0) return "#9aa3b2";
  if (label < COLORS.length) return COLORS[label];
  return `hsl(${Math.round(((label * 0.618034) % 1) * 360)} 75% 65%)`;
}

/** The picture of a row as an ImageBitmap, in its size as it is shown, at most `most` pixels wide and high. */
export async function pictureOf(split, field, row, most = Infinity) {
  const spec = split.fields[field];
  if (!spec.values) return fromPixels(await split.fixed(field, row), spec.shape, spec, most);
  const shape = Array.from(await split.value(field, "shape", row));
  const [height, width] = shape;
  if (!(height * width <= Math.min(spec.max_pixels, MOST_PIXELS))) throw new Error(`${width} x ${height} pixels are too many.`);
  if (spec.values.pixels) {
    const values = await split.value(field, "pixels", row);
    if (values.length !== shape[0] * shape[1] * shape[2]) throw new Error("the size and the pixels disagree.");
    return fromPixels(values, shape, { ...spec, dtype: spec.values.pixels.dtype }, most);
  }
  return fromFile(await split.value(field, "bytes", row), width, height, most);
}

async function fromFile(bytes, width, height, most) {
  if (bytes[0] === 0x50 && (bytes[1] === 0x35 || bytes[1] === 0x36)) {
    const at = bytes.length - width * height * (bytes[1] === 0x35 ? 1 : 3);
    return fromPixels(bytes.subarray(at), [height, width, bytes[1] === 0x35 ? 1 : 3], { dtype: "uint8" }, most);
  }
  const own = sizeInHeader(bytes);
  if (own && own[0] * own[1] !== width * height) throw new Error(`the file has ${own[0]} x ${own[1]} pixels, but the store says ${width} x ${height}.`);
  const scale = Math.min(1, most / Math.max(width, height));
  const size = scale < 1 ? { resizeWidth: Math.max(1, Math.round(width * scale)), resizeHeight: Math.max(1, Math.round(height * scale)), resizeQuality: "medium" } : {};
  try {
    return await createImageBitmap(new Blob([bytes]), size);
  } catch {
    throw new Error(`this browser cannot decode ${formatOf(bytes)}.`);
  }
}

/** Width and height that a file's header says, before it is decoded: a small file can hold a huge image. */
export function sizeInHeader(bytes) {
  if (bytes.length < 30) return null;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const text = (from, to) => String.fromCharCode(...bytes.subarray(from, to));
  const three = (at) => (view.getUint32(at, true) & 0xffffff) + 1;
  if (text(1, 4) === "PNG") return [view.getUint32(16), view.getUint32(20)];
  if (text(0, 3) === "GIF") return [view.getUint16(6, true), view.getUint16(8, true)];
  if (text(0, 2) === "BM") return [Math.abs(view.getInt32(18, true)), Math.abs(view.getInt32(22, true))];
  if (text(0, 4) === "RIFF" && text(8, 12) === "WEBP") {
    if (text(12, 16) === "VP8X") return [three(24), (view.getUint32(26, true) >>> 8) + 1];
    if (text(12, 16) === "VP8L") return [(view.getUint32(21, true) & 0x3fff) + 1, ((view.getUint32(21, true) >>> 14) & 0x3fff) + 1];
    return [view.getUint16(26, true) & 0x3fff, view.getUint16(28, true) & 0x3fff];
  }
  if (bytes[0] !== 0xff || bytes[1] !== 0xd8) return null;
  for (let at = 2; at + 9 < bytes.length && bytes[at] === 0xff; ) {
    const marker = bytes[at + 1];
    if (marker === 0xff) at += 1;
    else if (marker >= 0xc0 && marker <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(marker)) return [view.getUint16(at + 7), view.getUint16(at + 5)];
    else at += 2 + view.getUint16(at + 2);
  }
  return null;
}

function formatOf(bytes) {
  const head = String.fromCharCode(...bytes.subarray(0, 4));
  if (head.startsWith("II") || head.startsWith("MM")) return "TIFF files";
  if (head === "\0\0\0\f" || head.startsWith("\xff\x4f")) return "JPEG 2000 files";
  return head.startsWith("P") ? "PNM files of this kind" : "this file: it may be damaged";
}

/** Which channel is red, green and blue, or gray alone: spec.md, 6.1. */
function channelsOf(count, names) {
  const named = ["red", "green", "blue"].map((name) => (names ?? []).indexOf(name));
  if (named.every((index) => index >= 0)) return named;
  return count >= 3 ? [0, 1, 2] : [0, 0, 0];
}

function fromPixels(values, [height, width, channels], { dtype, channels: names, range }, most) {
  const [red, green, blue] = channelsOf(channels, names);
  const [black, white] = range ?? bounds(values, dtype);
  const step = Math.max(1, Math.floor(Math.max(height, width) / Math.min(most * 2, 4096)));
  const [w, h] = [Math.ceil(width / step), Math.ceil(height / step)];
  const out = new Uint8ClampedArray(4 * w * h);
  const factor = 255 / (white - black);
  const isBytes = black === 0 && white === 255;
  for (let y = 0, to = 0; y < h; y++) {
    for (let x = 0; x < w; x++, to += 4) {
      const from = (y * step * width + x * step) * channels;
      const [r, g, b] = [values[from + red], values[from + green], values[from + blue]];
      out[to] = isBytes ? r : (r - black) * factor;
      out[to + 1] = isBytes ? g : (g - black) * factor;
      out[to + 2] = isBytes ? b : (b - black) * factor;
      out[to + 3] = channels === 4 && !names ? (values[from + 3] - black) * factor : 255;
    }
  }
  return createImageBitmap(new ImageData(out, w, h));
}

function bounds(values, dtype) {
  const integer = /^(u?)int(\d+)$/.exec(dtype);
  if (integer) return [0, 2 ** (Number(integer[2]) - (integer[1] ? 0 : 1)) - 1];
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high && value < Infinity) high = value;
  }
  return high > low ? [low, high] : [low - 1, low + 1];
}

/** Corners [x, y] * 4 of an oriented box. */
export function cornersOf([cx, cy, w, h, angle]) {
  const [c, s] = [Math.cos(angle), Math.sin(angle)];
  return [[-w, -h], [w, -h], [w, h], [-w, h]].map(([x, y]) => [cx + (x * c - y * s) / 2, cy + (x * s + y * c) / 2]);
}

/** How many objects there are among the values of a row. */
export function countOf(objects, spec) {
  if (objects.labels) return objects.labels.length;
  if (objects.boxes) return objects.boxes.length / 4;
  if (objects.oriented_boxes) return objects.oriented_boxes.length / 5;
  if (objects.keypoints) return objects.keypoints.length / (2 * spec.values.keypoints.shape[0]);
  return Object.values(objects)[0]?.length ?? 0;
}

/**
 * Draw objects over a picture.
 * @param context of a canvas
 * @param objects values by name, of `spec`, a field of the kind objects
 * @param scale canvas pixels for a pixel of the stored image
 * @param options `least`: score of objects that are drawn; `only`: index of the single object to draw; `dashed`: for predictions
 */
export function drawObjects(context, objects, spec, scale, { only, dashed = false, names = true, least = 0 } = {}) {
  const count = countOf(objects, spec);
  const points = objects.keypoints && spec.values.keypoints.shape[0];
  const thin = count > 8 ? 1 : 2;
  context.save();
  context.setLineDash(dashed ? [5, 4] : []);
  const named = new Set();
  const taken = []; // by names that are drawn: left, top and width
  for (let i = 0; i < count; i++) {
    if ((only !== undefined && i !== only) || objects.scores?.[i] < least) continue;
    const color = colorOf(objects.labels?.[i] ?? 0);
    for (const ring of ringsOf(objects.polygons?.[i])) {
      outline(context, ring, scale, color, 1);
      context.globalAlpha = 0.22;
      context.fillStyle = color;
      context.fill();
      context.globalAlpha = 1;
    }
    const oriented = objects.oriented_boxes?.subarray(5 * i, 5 * i + 5);
    const box = objects.boxes?.subarray(4 * i, 4 * i + 4);
    const corners = oriented?.every(Number.isFinite) ? cornersOf(oriented) : box && [[box[0], box[1]], [box[2], box[1]], [box[2], box[3]], [box[0], box[3]]];
    if (corners) outline(context, corners, scale, color, thin);
    if (points) drawKeypoints(context, objects.keypoints.subarray(2 * points * i, 2 * points * (i + 1)), spec.skeleton ?? [], scale);
    if (names && corners && spec.classes?.length) {
      const label = objects.labels?.[i];
      if (count > 8 && named.has(label)) continue;
      const score = objects.scores?.[i];
      const name = `${spec.classes[label] ?? label}${score === undefined ? "" : ` ${score.toFixed(2)}`}`;
      if (drawName(context, name, corners, scale, color, taken)) named.add(label);
    }
  }
  context.restore();
}

function ringsOf(flat) {
  const rings = [[]];
  for (let i = 0; flat && i < flat.length; i += 2) {
    if (Number.isNaN(flat[i])) rings.push([]);
    else rings.at(-1).push([flat[i], flat[i + 1]]);
  }
  return rings.filter((ring) => ring.length > 1);
}

function outline(context, corners, scale, color, width) {
  context.beginPath();
  corners.forEach(([x, y], i) => (i ? context.lineTo(x * scale, y * scale) : context.moveTo(x * scale, y * scale)));
  context.closePath();
  for (const [style, line] of [["#000000a0", 2 * width], [color, width]]) {
    context.strokeStyle = style;
    context.lineWidth = line;
    context.stroke();
  }
}

function drawKeypoints(context, points, skeleton, scale) {
  const at = (k) => [points[2 * k] * scale, points[2 * k + 1] * scale];
  context.strokeStyle = "#fff04d";
  context.lineWidth = 1;
  for (const [from, to] of skeleton) {
    if (![...at(from), ...at(to)].every(Number.isFinite)) continue;
    context.beginPath();
    context.moveTo(...at(from));
    context.lineTo(...at(to));
    context.stroke();
  }
  const finite = [...points].filter((_, i) => i % 2 === 0 && Number.isFinite(points[i]));
  const spread = finite.length ? (Math.max(...finite) - Math.min(...finite)) * scale : 0;
  const radius = Math.min(2.4, Math.max(0.7, spread / 45));
  for (const [style, r] of [["#000", radius + 0.6], ["#fff04d", radius]]) {
    context.fillStyle = style;
    for (let k = 0; k < points.length / 2; k++) {
      if (!at(k).every(Number.isFinite)) continue;
      context.beginPath();
      context.arc(...at(k), r, 0, 7);
      context.fill();
    }
  }
}

/** Write a name at its object, inside of the canvas, unless it would cover one of those that are `taken`. */
function drawName(context, name, corners, scale, color, taken) {
  context.font = "11px system-ui, sans-serif";
  const width = context.measureText(name).width + 6;
  const right = context.canvas.width / context.getTransform().a;
  const left = Math.max(0, Math.min(Math.min(...corners.map(([x]) => x)) * scale, right - width));
  const top = Math.min(...corners.map(([, y]) => y)) * scale;
  const y = top >= 14 ? top - 14 : top;
  if (taken.some(([l, t, w]) => left < l + w && l < left + width && Math.abs(t - y) < 14)) return false;
  taken.push([left, y, width]);
  context.fillStyle = color;
  context.fillRect(left, y, width, 14);
  context.fillStyle = "#10131a";
  context.textBaseline = "middle";
  context.fillText(name, left + 3, y + 7.5);
  return true;
}

/** Lay a mask (height, width) over a canvas. */
export async function drawMask(context, mask, [height, width], spec) {
  const out = new Uint8ClampedArray(4 * width * height);
  const clear = BACKGROUND.includes(spec.classes[0]?.replace(/^[_ ]+|[_ ]+$/g, "").toLowerCase());
  const palette = new Map();
  for (let i = 0; i < mask.length; i++) {
    const label = mask[i];
    if (clear && label === 0) continue;
    if (!palette.has(label)) palette.set(label, label === spec.ignored ? [255, 255, 255] : rgbOf(colorOf(label)));
    out.set(palette.get(label), 4 * i);
    out[4 * i + 3] = 110;
  }
  const layer = await createImageBitmap(new ImageData(out, width, height));
  context.imageSmoothingEnabled = false;
  context.drawImage(layer, 0, 0, context.canvas.width, context.canvas.height);
}

let probe;
export function rgbOf(color) {
  probe ??= new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  probe.fillStyle = color;
  probe.fillRect(0, 0, 1, 1);
  return [...probe.getImageData(0, 0, 1, 1).data.subarray(0, 3)];
}

/** Runs of an object, as COCO has them, as the pixels (height, width) that they cover. */
export function maskOfRuns(runs, height, width) {
  const out = new Uint8Array(height * width);
  let at = 0;
  runs.forEach((length, i) => {
    for (let k = 0; k < length && at < out.length; k++, at++) if (i & 1) out[(at % height) * width + Math.floor(at / height)] = 1;
  });
  return out;
}
