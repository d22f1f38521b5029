// Two numbers of each item as a cloud of points, by WebGL; a lasso gives the items inside.
import { el, number } from "./elements.js";
import { colorOf, rgbOf } from "./picture.js";

const VERTEX = `#version 300 es
in vec2 place; in vec3 color; uniform vec4 view; uniform float size; out vec3 shade;
void main() { gl_Position = vec4((place - view.xy) * view.zw, 0.0, 1.0); gl_PointSize = size; shade = color; }`;
const FRAGMENT = `#version 300 es
precision mediump float; in vec3 shade; out vec4 result;
void main() { vec2 d = gl_PointCoord - 0.5; if (dot(d, d) > 0.25) discard; result = vec4(shade, 1.0); }`;

/** The cloud; `chosen(items)` is called with the items of a lasso, `open(item)` for a point that is clicked. */
export class Scatter {
  constructor({ chosen, open }) {
    Object.assign(this, { chosen, open });
    this.canvas = el("canvas", { class: "cloud", tabindex: 0, role: "img" });
    this.lasso = el("canvas", { class: "lasso" });
    this.note = el("p", { class: "quiet", role: "status" });
    this.element = el("div", { class: "scatter" }, el("div", { class: "plot" }, this.canvas, this.lasso), this.note);
    this.follow();
    new ResizeObserver(() => this.items && this.draw()).observe(this.canvas);
  }

  /** Show items by the values of two facets, colored by a third one. */
  show(items, x, y, color) {
    Object.assign(this, { items, x, y });
    const places = new Float32Array(2 * items.length);
    const shades = new Uint8Array(3 * items.length);
    const palette = new Map();
    const shadeOf = shading(color, palette);
    let [left, right, bottom, top] = [Infinity, -Infinity, Infinity, -Infinity];
    items.forEach((item, i) => {
      const [a, b] = [x.values[item], y.values[item]];
      places[2 * i] = a;
      places[2 * i + 1] = b;
      shades.set(shadeOf(item), 3 * i);
      if (a < left) left = a;
      if (a > right && a < Infinity) right = a;
      if (b < bottom) bottom = b;
      if (b > top && b < Infinity) top = b;
    });
    this.bounds = [left, right > left ? right : left + 1, bottom, top > bottom ? top : bottom + 1];
    this.places = places;
    this.shades = shades;
    this.note.textContent = `${number(items.length)} points. Across: ${x.label}, ${number(left)} to ${number(right)}. Up: ${y.label}, ${number(bottom)} to ${number(top)}. Draw around points to keep them.`;
    this.canvas.setAttribute("aria-label", this.note.textContent);
    this.draw();
  }

  draw() {
    const { canvas, lasso } = this;
    const ratio = window.devicePixelRatio || 1;
    for (const each of [canvas, lasso]) {
      each.width = Math.max(1, Math.round(canvas.clientWidth * ratio));
      each.height = Math.max(1, Math.round(canvas.clientHeight * ratio));
    }
    this.gl ??= this.program();
    if (!this.gl) {
      this.note.textContent = "this browser has no WebGL, which the scatter needs.";
      return;
    }
    const { gl } = this;
    gl.viewport(0, 0, canvas.width, canvas.height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    this.upload("place", this.places, 2, gl.FLOAT, false);
    this.upload("color", this.shades, 3, gl.UNSIGNED_BYTE, true);
    const [left, right, bottom, top] = this.bounds;
    const [w, h] = [(right - left) * 1.06, (top - bottom) * 1.06];
    gl.uniform4f(gl.getUniformLocation(this.linked, "view"), (left + right) / 2, (bottom + top) / 2, 2 / w, 2 / h);
    gl.uniform1f(gl.getUniformLocation(this.linked, "size"), ratio * Math.max(2, Math.min(8, 400 / Math.sqrt(this.items.length))));
    gl.drawArrays(gl.POINTS, 0, this.items.length);
  }

  program() {
    const gl = this.canvas.getContext("webgl2", { preserveDrawingBuffer: true });
    if (!gl) return null;
    this.linked = gl.createProgram();
    for (const [kind, text] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, text);
      gl.compileShader(shader);
      gl.attachShader(this.linked, shader);
    }
    gl.linkProgram(this.linked);
    gl.useProgram(this.linked);
    return gl;
  }

  upload(name, values, width, type, isNormalized) {
    const { gl } = this;
    this.buffers ??= {};
    const buffer = (this.buffers[name] ??= gl.createBuffer());
    gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
    gl.bufferData(gl.ARRAY_BUFFER, values, gl.STATIC_DRAW);
    const at = gl.getAttribLocation(this.linked, name);
    gl.enableVertexAttribArray(at);
    gl.vertexAttribPointer(at, width, type, isNormalized, 0, 0);
  }

  /** Where the points are, in CSS pixels of the canvas. */
  at(i) {
    const [left, right, bottom, top] = this.bounds;
    const { clientWidth, clientHeight } = this.canvas;
    const unit = (value, low, high) => 0.5 + (value - (low + high) / 2) / ((high - low) * 1.06);
    return [unit(this.places[2 * i], left, right) * clientWidth, (1 - unit(this.places[2 * i + 1], bottom, top)) * clientHeight];
  }

  follow() {
    let path = null;
    const place = (event) => {
      const { left, top } = this.canvas.getBoundingClientRect();
      return [event.clientX - left, event.clientY - top];
    };
    this.canvas.addEventListener("pointerdown", (event) => {
      path = [place(event)];
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (!path) return;
      path.push(place(event));
      this.trace(path);
    });
    this.canvas.addEventListener("pointerup", () => {
      const drawn = path;
      path = null;
      this.trace([]);
      if (!drawn || !this.items) return;
      const span = Math.max(...[0, 1].map((axis) => Math.max(...drawn.map((p) => p[axis])) - Math.min(...drawn.map((p) => p[axis]))));
      if (span < 4) this.pick(drawn[0]);
      else this.chosen(this.inside(drawn));
    });
  }

  trace(path) {
    const context = this.lasso.getContext("2d");
    const ratio = window.devicePixelRatio || 1;
    context.clearRect(0, 0, this.lasso.width, this.lasso.height);
    context.strokeStyle = "#2f9bff";
    context.lineWidth = 2 * ratio;
    context.beginPath();
    path.forEach(([x, y], i) => (i ? context.lineTo(x * ratio, y * ratio) : context.moveTo(x * ratio, y * ratio)));
    context.stroke();
  }

  inside(polygon) {
    const found = [];
    for (let i = 0; i < this.items.length; i++) if (isInside(this.at(i), polygon)) found.push(this.items[i]);
    return found;
  }

  pick([x, y]) {
    let [best, least] = [-1, 12 ** 2];
    for (let i = 0; i < this.items.length; i++) {
      const [a, b] = this.at(i);
      const far = (a - x) ** 2 + (b - y) ** 2;
      if (far < least) [best, least] = [i, far];
    }
    if (best >= 0) this.open(this.items[best]);
  }
}

/** Colors of items: of classes those of the boxes, of numbers from blue to yellow. */
function shading(facet, palette) {
  if (!facet) return () => [47, 155, 255];
  if (facet.kind === "class") {
    return (item) => {
      const label = facet.values[item];
      if (!palette.has(label)) palette.set(label, rgbOf(colorOf(label)));
      return palette.get(label);
    };
  }
  const { low, high } = facet.edges;
  return (item) => {
    const t = Math.min(1, Math.max(0, (facet.values[item] - low) / (high - low || 1))) || 0;
    return [40 + 215 * t, 80 + 130 * t, 200 - 170 * t];
  };
}

/** Whether a point lies in a polygon, by crossings of a ray. */
export function isInside([x, y], polygon) {
  let inside = false;
  for (let i = 0, j = polygon.length - 1; i < polygon.length; j = i++) {
    const [[x1, y1], [x2, y2]] = [polygon[i], polygon[j]];
    if (y1 > y !== y2 > y && x < ((x2 - x1) * (y - y1)) / (y2 - y1) + x1) inside = !inside;
  }
  return inside;
}
