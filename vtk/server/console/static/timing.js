/** What one streamed answer took, as the browser saw it. All times in seconds. */

import { count, quantileOf, seconds, share } from "./format.js";

export class Timing {
  #started = performance.now();
  #first = null;
  #last = null;
  #tokens = 0;
  #gaps = [];
  #usage = null;

  /** A chunk came; usage as the server counts it so far. Tokens that come together share the time since the last. */
  chunk(usage) {
    const now = performance.now();
    const tokens = usage.completion_tokens - this.#tokens;
    this.#usage = usage;
    if (tokens <= 0) return;
    this.#first ??= now;
    if (this.#last !== null) {
      const gap = (now - this.#last) / tokens / 1000;
      for (let i = 0; i < tokens; i++) this.#gaps.push(gap);
    }
    this.#last = now;
    this.#tokens += tokens;
  }

  get ttft() {
    return this.#first === null ? null : (this.#first - this.#started) / 1000;
  }

  /** Tokens per second after the first chunk; null before there are any. */
  get rate() {
    return this.#gaps.length ? this.#gaps.length / ((this.#last - this.#first) / 1000) : null;
  }

  /** Name, value and explanation of each figure. */
  figures() {
    const prompt = this.#usage?.prompt_tokens ?? 0;
    const cached = this.#usage?.prompt_tokens_details?.cached_tokens ?? 0;
    const itl = quantileOf(this.#gaps, 0.5);
    return [
      ["TTFT", seconds(this.ttft ?? (performance.now() - this.#started) / 1000), "time to first token"],
      ["ITL", seconds(itl), "time between two tokens, median"],
      ["p95", seconds(quantileOf(this.#gaps, 0.95)), "time between two tokens, 95th percentile"],
      ["tokens/s", count(this.rate), "after the first token"],
      ["tokens", count(this.#tokens), "of the answer"],
      ["cached", `${cached} of ${prompt}`, `prompt tokens from the prefix cache: ${share(prompt ? cached / prompt : 0)}`],
    ];
  }
}
