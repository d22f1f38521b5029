// Predicted boxes and the true ones: right, wrong and missed, as `tsds predict` draws them.

/** For each row how many predictions are right and wrong, and how many objects are missed, at an IoU of 0.5. */
export async function matchRows(split, truth, guess, least = 0.5) {
  const [trueOnes, guesses] = await Promise.all([truth, guess].map(async (field) => {
    const { values, classes } = split.fields[field];
    const [offsets, boxes, labels] = await Promise.all(["offsets", "boxes"].concat(values.labels ? ["labels"] : []).map((name) => split.column(field, name)));
    return { offsets, boxes, labels: labels ? Array.from(labels, (label) => classes?.[label] ?? label) : null };
  }));
  const scores = await split.column(guess, "scores");
  const [right, wrong, missed] = [0, 1, 2].map(() => new Int32Array(split.rows));
  for (let row = 0; row < split.rows; row++) {
    const found = matchBoxes(trueOnes, guesses, scores, row, least);
    right[row] = found.filter((match) => match.truth >= 0).length;
    wrong[row] = found.length - right[row];
    missed[row] = trueOnes.offsets[row + 1] - trueOnes.offsets[row] - right[row];
  }
  return { right, wrong, missed };
}

/** The predictions of a row, the surest first, each with the true object of its class that it fits best, or -1. */
function matchBoxes(trueOnes, guesses, scores, row, least) {
  const [first, last] = [guesses.offsets[row], guesses.offsets[row + 1]];
  const order = Array.from({ length: last - first }, (_, i) => first + i).sort((a, b) => scores[b] - scores[a]);
  const taken = new Set();
  return order.map((i) => {
    let [best, overlap] = [-1, least];
    for (let j = trueOnes.offsets[row]; j < trueOnes.offsets[row + 1]; j++) {
      if (taken.has(j) || (trueOnes.labels && guesses.labels && trueOnes.labels[j] !== guesses.labels[i])) continue;
      const value = iou(guesses.boxes, 4 * i, trueOnes.boxes, 4 * j);
      if (value >= overlap) [best, overlap] = [j, value];
    }
    if (best >= 0) taken.add(best);
    return { guess: i, truth: best };
  });
}

function iou(a, i, b, j) {
  const width = Math.min(a[i + 2], b[j + 2]) - Math.max(a[i], b[j]);
  const height = Math.min(a[i + 3], b[j + 3]) - Math.max(a[i + 1], b[j + 1]);
  if (width <= 0 || height <= 0) return 0;
  const area = (boxes, k) => (boxes[k + 2] - boxes[k]) * (boxes[k + 3] - boxes[k + 1]);
  return (width * height) / (area(a, i) + area(b, j) - width * height);
}
