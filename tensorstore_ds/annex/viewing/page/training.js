// Curves of training runs, from their history.jsonl, as they go on.
import { el, number, svg } from "./elements.js";
import { colorOf } from "./picture.js";

const [WIDTH, HEIGHT, LEFT, BOTTOM] = [460, 240, 48, 24];

/** Charts of runs `[{name, epochs}]`: the losses, and every figure of the evaluation. */
export function curves(runs) {
  const figures = new Map([["loss", []]]);
  runs.forEach(({ name, epochs }, number) => {
    const add = (figure, part, line) => {
      if (!figures.has(figure)) figures.set(figure, []);
      const points = epochs.filter((epoch) => Number.isFinite(epoch[part]?.[figure])).map((epoch) => [epoch.epoch, epoch[part][figure]]);
      if (points.length) figures.get(figure).push({ name: `${name}, ${part}`, points, line, color: colorOf(number) });
    };
    const names = (part) => new Set(epochs.flatMap((epoch) => Object.keys(epoch[part] ?? {})));
    for (const figure of names("train")) add(figure, "train", "4 3");
    for (const figure of names("eval")) add(figure, "eval", "");
    figures.set("samples a second", [...(figures.get("samples a second") ?? []), { name, points: epochs.filter((epoch) => epoch.samples_per_second).map((epoch) => [epoch.epoch, epoch.samples_per_second]), line: "", color: colorOf(number) }]);
  });
  const charts = [...figures].filter(([, lines]) => lines.some((line) => line.points.length)).map(([figure, lines]) => chart(figure, lines));
  return el("div", { class: "charts" }, ...charts);
}

function chart(title, lines) {
  const points = lines.flatMap((line) => line.points);
  const [xs, ys] = [0, 1].map((axis) => points.map((point) => point[axis]));
  const [low, high] = [Math.min(0, ...ys), Math.max(...ys)];
  const [first, last] = [Math.min(...xs), Math.max(...xs, Math.min(...xs) + 1)];
  const x = (value) => LEFT + ((value - first) / (last - first)) * (WIDTH - LEFT - 8);
  const y = (value) => 8 + (1 - (value - low) / (high - low || 1)) * (HEIGHT - BOTTOM - 8);
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": describe(title, lines) });
  for (const tick of [0, 0.25, 0.5, 0.75, 1].map((part) => low + part * (high - low))) {
    drawing.append(svg("line", { x1: LEFT, x2: WIDTH - 8, y1: y(tick), y2: y(tick), class: "rule" }));
    drawing.append(svg("text", { x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, number(Number(tick.toPrecision(3)))));
  }
  for (const tick of new Set([first, Math.round((first + last) / 2), last])) drawing.append(svg("text", { x: x(tick), y: HEIGHT - 6, "text-anchor": "middle" }, String(tick)));
  for (const line of lines) {
    drawing.append(svg("polyline", { points: line.points.map((point) => `${x(point[0])},${y(point[1])}`).join(" "), fill: "none", stroke: line.color, "stroke-width": 2, "stroke-dasharray": line.line }));
    const [epoch, value] = line.points.at(-1) ?? [];
    if (epoch !== undefined) drawing.append(svg("circle", { cx: x(epoch), cy: y(value), r: 3, fill: line.color }));
  }
  const legend = el("ul", { class: "legend" }, ...lines.map((line) => {
    const swatch = el("span", { class: line.line ? "swatch dashed" : "swatch" });
    swatch.style.background = line.color;
    return el("li", {}, swatch, `${line.name}: ${number(line.points.at(-1)?.[1] ?? NaN)}`);
  }));
  return el("figure", { class: "chart" }, el("figcaption", {}, title), drawing, legend);
}

function describe(title, lines) {
  return `${title} by epoch. ${lines.map((line) => `${line.name}: ${number(line.points.at(-1)?.[1] ?? NaN)} at last`).join("; ")}`;
}

/** The epochs of a history.jsonl; a last line that is not complete yet is left out. */
export function epochsOf(text) {
  return text.split("\n").flatMap((line) => {
    try {
      const found = JSON.parse(line);
      return Number.isInteger(found?.epoch) ? [found] : [];
    } catch {
      return [];
    }
  });
}
