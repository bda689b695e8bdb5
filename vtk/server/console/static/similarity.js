/** How alike pictures are to a model: the cosines between their embeddings, as a table. */

import { el } from "./dom.js";

export function cosine(a, b) {
  let dot = 0;
  let aa = 0;
  let bb = 0;
  for (let i = 0; i < a.length; i++) {
    dot += a[i] * b[i];
    aa += a[i] * a[i];
    bb += b[i] * b[i];
  }
  return dot / Math.sqrt(aa * bb);
}

/** The table of two or more pictures; nothing for one. */
export function showSimilarity(place, names, embeddings) {
  if (names.length < 2) return;
  const heads = names.map((name) => el("th", { scope: "col", title: name }, name));
  const rows = names.map((name, i) => {
    const cells = embeddings.map((other) => cell(cosine(embeddings[i], other)));
    return el("tr", {}, el("th", { scope: "row", title: name }, name), ...cells);
  });
  const table = el(
    "table",
    { className: "similarity" },
    el("caption", {}, "Cosine similarity"),
    el("thead", {}, el("tr", {}, el("td"), ...heads)),
    el("tbody", {}, ...rows),
  );
  place.replaceChildren(el("div", { className: "card scroll" }, table));
}

function cell(value) {
  const node = el("td", {}, value.toFixed(3));
  node.style.setProperty("--share", Math.max(0, value));
  return node;
}
