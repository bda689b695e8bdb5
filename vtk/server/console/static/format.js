/** Numbers as people read them. */

const DASH = "–";

/** Seconds as ms below one second, else as s. */
export function seconds(value) {
  if (value === null) return DASH;
  if (value >= 1) return `${value.toFixed(2)} s`;
  const ms = value * 1000;
  return `${ms.toFixed(ms < 10 ? 1 : 0)} ms`;
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let step = 0;
  for (; value >= 1024 && step < units.length - 1; step++) value /= 1024;
  return `${value.toFixed(step && value < 100 ? 1 : 0)} ${units[step]}`;
}

export function share(value) {
  return value === null ? DASH : `${(value * 100).toFixed(value > 0 && value < 0.1 ? 1 : 0)}%`;
}

export function count(value) {
  if (value === null) return DASH;
  if (value >= 10_000) return `${(value / 1000).toFixed(0)}k`;
  return Number.isInteger(value) || value >= 100 ? value.toFixed(0) : value.toFixed(1);
}

/** The q-quantile of numbers by nearest rank; null of none. */
export function quantileOf(values, q) {
  if (!values.length) return null;
  const sorted = Float64Array.from(values).sort();
  return sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))];
}
