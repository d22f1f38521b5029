// What `tsds check --out` has found: copies, leaks, labels that disagree, odd boxes, each beside its pictures.
import { el, number } from "./elements.js";

const MOST_GROUPS = 200;
const ODD = { blurred: "Blurred images", dark: "Dark images", bright: "Overexposed images", aspect: "Images of odd aspect ratios" };
const WHY = { small: "a small box", large: "a large box", long: "a long box", apart: "apart from its oriented box" };

/** Sections of findings as an element; `picture(split, row)` makes a tile, which opens the sample. */
export function findingsView(findings, digest, picture) {
  const view = el("div", { class: "findings" });
  if (findings.sha256 && findings.sha256 !== digest) {
    view.append(el("p", { class: "error" }, "These findings are of another state of the store. Run tsds check again."));
  }
  const isLeak = (group) => group.is_leak;
  const sections = [
    ["Leaks between splits", findings.copies.filter(isLeak)],
    ["Copies with labels that disagree", findings.copies.filter((group) => group.labels_disagree)],
    ["Copies", findings.copies.filter((group) => !isLeak(group))],
  ].map(([title, groups]) => [title, groups.map((group) => ({ samples: group.samples, note: group.exact ? "equal bytes" : "changed copies" }))]);
  const single = (list, note) => list.map((each) => ({ samples: [each.sample ?? each], note: note(each) }));
  sections.push(["Images of one color", single(findings.constant ?? [], () => "")]);
  sections.push(["Images that cannot be decoded", single(findings.unreadable ?? [], (each) => each.message)]);
  for (const [why, title] of Object.entries(ODD)) {
    sections.push([title, single((findings.images ?? []).filter((each) => each.why === why), (each) => number(each.value))]);
  }
  sections.push(["Labels that may be wrong", single(findings.labels ?? [], (each) => `${each.label}, probably ${each.suggested}`)]);
  sections.push(["Objects that may be wrong", single(findings.objects ?? [], (each) => `${each.why}: ${each.label ? `${each.label}, ` : ""}${each.suggested} was detected with ${number(each.score)}`)]);
  sections.push(["Odd boxes", single(findings.boxes ?? [], (each) => WHY[each.why] ?? each.why)]);
  sections.push(["Absent keypoints", single(findings.keypoints ?? [], (each) => `without ${each.names.join(", ")}`)]);
  for (const [title, groups] of sections) if (groups.length) view.append(section(title, groups, picture));
  for (const each of findings.shared ?? []) view.append(el("p", {}, `${number(each.count)} images of ${each.split} are in ${each.other} of ${each.store}.`));
  for (const few of findings.classes ?? []) view.append(el("p", {}, `The class ${few.name} has ${number(few.count)} samples in ${few.split}.`));
  if (view.children.length === 0) view.append(el("p", {}, "Nothing was found."));
  return view;
}

function section(title, groups, picture) {
  const part = el("section", {}, el("h2", {}, `${title} (${number(groups.length)})`));
  let shown = 0;
  const more = el("button", { onclick: () => add() }, "more");
  const add = () => {
    for (const group of groups.slice(shown, shown + MOST_GROUPS)) part.insertBefore(row(group, picture), more);
    shown += MOST_GROUPS;
    more.hidden = shown >= groups.length;
  };
  part.append(more);
  add();
  return part;
}

function row(group, picture) {
  const tiles = (group.samples ?? []).map((sample) => {
    const caption = `${sample?.store ? `${sample.store}, ` : ""}${sample?.split}: ${sample?.key}${sample?.label ? `, ${sample.label}` : ""}`;
    return el("figure", {}, ...(sample?.store ? [] : [picture(sample?.split, sample?.row)]), el("figcaption", {}, caption)); // this page reads one store
  });
  return el("div", { class: "group" }, ...tiles, el("p", { class: "quiet" }, group.note));
}
