// Labels against predictions: a matrix whose cells show the images behind them.
import { el, number } from "./elements.js";

const MOST_CLASSES = 60;
const MOST_PAIRS = 200;

/** Pairs of fields of labels with the same classes. */
export function pairsOfLabels(split) {
  const all = split.all("label");
  const same = (a, b) => JSON.stringify(split.fields[a].classes) === JSON.stringify(split.fields[b].classes);
  return all.flatMap((truth, i) => all.slice(i + 1).filter((guess) => same(truth, guess)).map((guess) => [truth, guess]));
}

/** For many classes: the pairs of classes with most errors. */
function pairsTable(items, truth, guess, choose) {
  const size = truth.names.length;
  const counts = new Map();
  let right = 0;
  for (const item of items) {
    const [a, b] = [truth.values[item], guess.values[item]];
    if (a < 0 || b < 0) continue;
    if (a === b) right += 1;
    else counts.set(a * size + b, (counts.get(a * size + b) ?? 0) + 1);
  }
  const worst = [...counts].sort((a, b) => b[1] - a[1]).slice(0, MOST_PAIRS);
  const rows = worst.map(([pair, count]) => {
    const [a, b] = [Math.floor(pair / size), pair % size];
    return el("tr", {}, el("td", {}, truth.names[a]), el("td", {}, guess.names[b]), el("td", {}, el("button", { onclick: () => choose(a, b) }, number(count))));
  });
  const head = el("tr", {}, ...[truth.label, guess.label, "images"].map((name) => el("th", { scope: "col" }, name)));
  return el("div", { class: "wide" }, el("table", {}, el("caption", {}, `${number(right)} are equal. The pairs of the ${number(size)} classes with most errors:`), el("thead", {}, head), el("tbody", {}, ...rows)));
}

/** A table (truth down, prediction across) of the items; `choose(truth, guess)` is called with a cell's classes. */
export function confusionTable(items, truth, guess, choose) {
  const size = truth.names.length;
  if (size > MOST_CLASSES) return pairsTable(items, truth, guess, choose);
  const counts = new Uint32Array(size * size);
  for (const item of items) {
    const [a, b] = [truth.values[item], guess.values[item]];
    if (a >= 0 && b >= 0) counts[a * size + b] += 1;
  }
  const right = Array.from({ length: size }, (_, i) => counts[i * size + i]).reduce((a, b) => a + b, 0);
  const total = counts.reduce((a, b) => a + b, 0);
  const head = el("tr", {}, el("th", { scope: "col" }, `${truth.label} \\ ${guess.label}`), ...truth.names.map((name) => el("th", { scope: "col" }, name)));
  const table = el("table", { class: "confusion" }, el("caption", {}, `${number(right)} of ${number(total)} are equal (${total ? ((100 * right) / total).toFixed(1) : 0} %). A number shows its images.`), el("thead", {}, head));
  const body = el("tbody");
  for (let a = 0; a < size; a++) {
    const row = counts.subarray(a * size, (a + 1) * size);
    const most = Math.max(1, row.reduce((x, y) => x + y, 0));
    const cells = Array.from(row, (count, b) => {
      const button = el("button", { disabled: !count, "aria-label": `${truth.names[a]} predicted as ${truth.names[b]}: ${count}`, onclick: () => choose(a, b) }, count ? number(count) : "\u00b7");
      const cell = el("td", { class: a === b ? "right" : "" }, button);
      cell.style.setProperty("--share", (count / most).toFixed(3));
      return cell;
    });
    body.append(el("tr", {}, el("th", { scope: "row" }, truth.names[a]), ...cells));
  }
  table.append(body);
  return el("div", { class: "wide" }, table);
}
