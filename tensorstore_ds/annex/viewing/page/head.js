// The top of the page: the title, the views, and what can be chosen for the view that is shown.
import { choice, el, number } from "./elements.js";

export const LEAST_SCORE = "0.3"; // of predictions that are drawn
export const SIZES = [48, 64, 96, 150, 220, 320, 480];

/** The elements of the head of a viewer. */
export function headOf(viewer) {
  const { settings, split, store, list } = viewer;
  const tab = ([name, text]) => el("button", { "aria-current": name === viewer.view ? "page" : null, onclick: () => viewer.show(name) }, text);
  const splits = [...store.splits].map(([name, each]) => [name, `${name} (${number(each.rows)})`]);
  const controls = [choice("split", splits, split.name, (name) => viewer.useSplit(name))];
  if (viewer.isGrid) {
    const facets = list.offered.filter((offer) => !offer.isMany).flatMap(({ name, label = name }) => [[name, label], [`-${name}`, `${label}, descending`]]);
    const sizes = SIZES.map((size) => [String(size), `${size} px`]);
    const go = el("input", { type: "search", placeholder: "row or key", "aria-label": "go to row or key", onchange: () => viewer.goTo(go.value) });
    controls.push(choice("sort", [["", "as stored"], ...facets], viewer.get("sort", ""), (name) => viewer.sort(name)));
    controls.push(choice("size", sizes, String(viewer.grid.tile), (size) => viewer.resize(Number(size))), go);
  }
  const overlaid = split.all("objects");
  if (overlaid.length || split.all("mask").length) {
    const only = overlaid.length > 1 ? overlaid.map((name) => [name, `${name} only`]) : [];
    controls.push(choice("overlays", [["", "all"], ...only, ["off", "none"]], viewer.get("overlays", ""), (name) => viewer.redraw("overlays", name)));
  }
  if (overlaid.some((name) => split.fields[name].values.scores)) {
    const scores = Array.from({ length: 10 }, (_, i) => (i / 10).toFixed(1));
    controls.push(choice("score from", scores.map((score) => [score, score]), viewer.get("score", LEAST_SCORE), (score) => viewer.redraw("score", score)));
  }
  const names = viewer.tags.names();
  if (names.length) controls.push(choice("tag", [["", "any"], ...names.map((name) => [name, name])], viewer.get("tag", ""), (tag) => viewer.useTag(tag)));
  return [el("h1", {}, settings.title ?? "store"), el("nav", { "aria-label": "views" }, ...viewer.tabs().map(tab)), el("div", { class: "controls" }, ...controls)];
}
