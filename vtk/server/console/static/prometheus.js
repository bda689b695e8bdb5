/** Prometheus' text format, and the few things of its query language that the charts need. */

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;
const ESCAPES = { n: "\n", "\\": "\\", '"': '"' };

/** name → Map of the text of the labels → {labels, value}. */
export function parse(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const [, name, labels = "", value] = SAMPLE.exec(line) ?? [];
    if (name === undefined) continue;
    if (!found.has(name)) found.set(name, new Map());
    found.get(name).set(labels, { labels: readLabels(labels), value: readNumber(value) });
  }
  return found;
}

function readLabels(text) {
  const unescape = (value) => value.replace(/\\(.)/g, (whole, char) => ESCAPES[char] ?? whole);
  return Object.fromEntries([...text.matchAll(LABEL)].map(([, name, value]) => [name, unescape(value)]));
}

function readNumber(text) {
  return { "+Inf": Infinity, "-Inf": -Infinity }[text] ?? Number(text);
}

function series(snapshot, name, match) {
  const wanted = Object.entries(match);
  const all = [...(snapshot.get(name) ?? [])];
  return all.filter(([, { labels }]) => wanted.every(([key, value]) => labels[key] === value));
}

/** The sum of a gauge over all series with these labels; null if there is none. */
export function sum(now, name, match = {}) {
  const found = series(now, name, match);
  return found.length ? found.reduce((total, [, { value }]) => total + value, 0) : null;
}

/** How much a counter grew between two snapshots; one that fell was reset, and one that was not there began at 0. */
export function increase(before, now, name, match = {}) {
  return growth(before, now, name, match).reduce((total, { grown }) => total + grown, 0);
}

function growth(before, now, name, match) {
  const old = before.get(name);
  return series(now, name, match).map(([key, { labels, value }]) => {
    const from = old?.get(key)?.value ?? 0;
    return { labels, grown: value >= from ? value - from : value };
  });
}

/** The q-quantile of what a histogram saw between two snapshots, as histogram_quantile interpolates it; or null. */
export function quantile(before, now, name, q) {
  const counts = new Map();
  for (const { labels, grown } of growth(before, now, `${name}_bucket`, {})) {
    const bound = readNumber(labels.le);
    counts.set(bound, (counts.get(bound) ?? 0) + grown);
  }
  const buckets = [...counts].sort(([a], [b]) => a - b);
  const total = buckets.at(-1)?.[1] ?? 0;
  if (total === 0) return null;
  const rank = q * total;
  const index = buckets.findIndex(([, count]) => count >= rank);
  const [bound, count] = buckets[index];
  const [lower, below] = index ? buckets[index - 1] : [0, 0];
  return bound === Infinity ? lower : lower + ((bound - lower) * (rank - below)) / (count - below || 1);
}
