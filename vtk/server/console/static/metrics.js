/** Live charts of what the server measures, read from /metrics like any Prometheus would. */

import { request, signals } from "./api.js";
import { Chart } from "./chart.js";
import { byId } from "./dom.js";
import { count, seconds, share } from "./format.js";
import { increase, parse, quantile, sum } from "./prometheus.js";

const EVERY = 2000; // milliseconds
const RATE_WINDOW = 5; // seconds that a rate is taken over
const WINDOW = 30; // seconds that quantiles and shares of events are taken over

const rate = (name, match) => ({ recent, now, elapsed }) => increase(recent, now, name, match) / elapsed;
const quantiles = (name) => [0.5, 0.95].map((q) => ({ past, now }) => quantile(past, now, name, q));

/** Each reads {now, recent, past, elapsed}: snapshots of now and of about RATE_WINDOW and WINDOW ago. */
const CHARTS = [
  {
    title: "Requests",
    names: ["running", "waiting"],
    format: count,
    least: 4,
    read: [({ now }) => sum(now, "vllm:num_requests_running"), ({ now }) => sum(now, "vllm:num_requests_waiting")],
  },
  {
    title: "Tokens per second",
    names: ["generated", "prompt"],
    format: count,
    least: 10,
    read: [rate("vllm:generation_tokens_total"), rate("vllm:prompt_tokens_total")],
  },
  {
    title: "Time to first token",
    names: ["p50", "p95"],
    format: seconds,
    least: 0.01,
    read: quantiles("vllm:time_to_first_token_seconds"),
  },
  {
    title: "Inter-token latency",
    names: ["p50", "p95"],
    format: seconds,
    least: 0.01,
    read: quantiles("vllm:inter_token_latency_seconds"),
  },
  {
    title: "KV cache in use",
    names: ["blocks"],
    format: share,
    max: 1,
    read: [({ now }) => sum(now, "vllm:kv_cache_usage_perc")],
  },
  {
    title: "Prefix cache hits",
    names: ["of prompt tokens"],
    format: share,
    max: 1,
    read: [hitRate],
  },
  {
    title: "Pictures per second",
    names: ["pictures"],
    format: count,
    least: 1,
    read: [rate("vtk:vision_pictures_total")],
  },
  {
    title: "Device busy",
    names: ["language", "vision"],
    format: share,
    max: 1,
    read: ["language", "vision"].map((kind) => rate("vtk:device_busy_seconds_total", { kind })),
  },
];

function hitRate({ past, now }) {
  const asked = increase(past, now, "vllm:prefix_cache_queries_total");
  return asked ? increase(past, now, "vllm:prefix_cache_hits_total") / asked : null;
}

let history = [];

export function startMetrics() {
  const charts = CHARTS.map((spec) => new Chart(spec));
  byId("charts").replaceChildren(...charts.map((chart) => chart.root));
  const follow = async () => {
    if (!document.hidden) await poll(charts);
    setTimeout(follow, EVERY);
  };
  follow();
  return {};
}

async function poll(charts) {
  try {
    const text = await (await request("/metrics")).text();
    const time = performance.now() / 1000;
    history = [...history.filter((snapshot) => snapshot.time >= time - WINDOW), { time, values: parse(text) }];
    if (history.length > 1) draw(charts, time);
    byId("metrics-status").textContent = "The last three minutes of all models together, every two seconds.";
  } catch (error) {
    byId("metrics-status").textContent = error.message;
    if (error.status !== 401) return;
    await new Promise((go) => signals.addEventListener("key-changed", go, { once: true }));
    await poll(charts);
  }
}

function draw(charts, time) {
  const last = history.at(-1);
  const recent = history.find((snapshot) => snapshot.time >= time - RATE_WINDOW && snapshot !== last) ?? history.at(-2);
  const elapsed = time - recent.time;
  const view = { now: last.values, recent: recent.values, past: history[0].values, elapsed };
  charts.forEach((chart, i) => chart.add(time, CHARTS[i].read.map((read) => read(view))));
}
