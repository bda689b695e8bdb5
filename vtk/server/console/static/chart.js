/** A small line chart that follows the last minutes. */

import { el, svg } from "./dom.js";

const WIDTH = 300;
const HEIGHT = 100;
export const SPAN = 180; // seconds that are shown

export class Chart {
  #spec;
  #points = [];
  #values;
  #lines;
  #top;
  #svg;

  /** spec: title, names of the series, format of a value, max of the axis (by default what fits). */
  constructor(spec) {
    this.#spec = spec;
    this.#values = spec.names.map(() => el("output", {}, "–"));
    this.#lines = spec.names.map((_, i) => svg("path", { class: `line series-${i}` }));
    this.#top = el("span", { className: "axis" });
    this.#svg = svg(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" },
      ...[0, 0.5, 1].map((y) => svg("path", { class: "grid", d: `M0 ${y * HEIGHT}H${WIDTH}` })),
      ...this.#lines,
    );
    const legend = spec.names.map((name, i) =>
      el("span", { className: `legend series-${i}` }, el("span", {}, name), this.#values[i]),
    );
    this.root = el(
      "article",
      { className: "card chart" },
      el("h2", {}, spec.title),
      el("div", { className: "legends" }, ...legend),
      el("div", { className: "plot" }, this.#top, this.#svg),
    );
  }

  /** One value per series at a time in seconds; null is a gap. */
  add(time, values) {
    this.#points.push({ time, values });
    while (this.#points[0].time < time - SPAN) this.#points.shift();
    const texts = values.map(this.#spec.format);
    texts.forEach((text, i) => (this.#values[i].value = text));
    const told = this.#spec.names.map((name, i) => `${name} ${texts[i]}`).join(", ");
    this.#svg.setAttribute("aria-label", `${this.#spec.title}, last 3 minutes; now ${told}`);
    this.#draw(time);
  }

  #draw(now) {
    const all = this.#points.flatMap(({ values }) => values.filter((value) => value !== null));
    const max = this.#spec.max ?? niceCeiling(Math.max(0, ...all), this.#spec.least);
    this.#top.textContent = this.#spec.format(max);
    this.#lines.forEach((line, i) => line.setAttribute("d", this.#path(i, now, max)));
  }

  #path(index, now, max) {
    let isDown = false;
    const steps = this.#points.map(({ time, values }) => {
      const value = values[index];
      if (value === null) {
        isDown = false;
        return "";
      }
      const x = (WIDTH * (1 - (now - time) / SPAN)).toFixed(1);
      const y = (HEIGHT * (1 - Math.min(1, value / max))).toFixed(1);
      // A point between two gaps is drawn as a dot: a line to itself with round ends.
      const step = isDown ? `L${x} ${y}` : `M${x} ${y}l0 0`;
      isDown = true;
      return step;
    });
    return steps.join("");
  }
}

/** The least of 1, 2, 5 times a power of ten that is not below the value, nor below `least`. */
export function niceCeiling(value, least) {
  if (value <= least) return least;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((bound) => bound >= value * (1 - 1e-9));
}
