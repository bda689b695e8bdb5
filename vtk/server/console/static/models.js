/** Every model with what computes it, to load and unload; and where prompts miss the prefix cache. */

import { ask, getJson, request, signals } from "./api.js";
import { byId, el } from "./dom.js";
import { bytes, share } from "./format.js";
import { parse } from "./prometheus.js";

const MAX_ADVICE = 5; // the server puts what costs most first
const CONTROLS = { load: "Load", unload: "Unload", reload: "Reload" };

let shown = "";

export function startModels() {
  return { shown: show, modelsChanged: () => byId("models").hidden || show() };
}

function say(text, isError = false) {
  const place = byId("models-status");
  place.textContent = text;
  place.classList.toggle("error", isError);
}

async function show() {
  try {
    const [health, cards, metrics] = await Promise.all([
      ask("/health").then((response) => response.json()),
      getJson("/v1/models"),
      request("/metrics").then((response) => response.text()),
    ]);
    const sizes = parse(metrics).get("vtk:model_bytes");
    const rows = health.models.map((model) => ({
      ...model,
      ...cards.data.find((card) => card.id === model.name && card.version === model.version),
      bytes: sizeOf(sizes, model),
    }));
    showCards(rows);
    await showDoctor();
  } catch (error) {
    say(error.message, true);
  }
}

/** Draws only what is new, so that whoever is at a button keeps it. */
function showCards(rows) {
  const now = JSON.stringify(rows);
  if (now === shown) return;
  shown = now;
  const name = document.activeElement.closest("[data-model]")?.dataset.model;
  byId("model-list").replaceChildren(...rows.map(card));
  if (name !== undefined) focusOn(name);
}

function focusOn(name) {
  byId("model-list").querySelector(`[data-model="${CSS.escape(name)}"] button`)?.focus();
}

function sizeOf(sizes, { name, version }) {
  const found = [...(sizes?.values() ?? [])].find(
    ({ labels }) => labels.model_name === name && labels.model_version === version,
  );
  return found?.value ?? 0;
}

function card(model) {
  const facts = {
    Version: model.version,
    Kind: model.kind === "llm" ? "language model" : `vision · ${model.task}`,
    Backend: model.backend,
    Device: model.device,
    Precision: model.precision,
    Memory: model.bytes ? bytes(model.bytes) : "",
    Context: model.max_model_len ? `${model.max_model_len} tokens` : "",
    "Source SHA-256": model.source_sha256,
    "Tensor digest": model.tensor_digest,
  };
  const rows = Object.entries(facts).filter(([, value]) => value);
  const list = rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", { title: value }, value)]);
  const actions = model.state === "ready" ? ["reload", "unload"] : ["load"];
  return el(
    "article",
    { className: "card model", "data-model": model.name },
    el("h2", {}, model.name, el("span", { className: "state", "data-state": model.state }, model.state)),
    el("p", { className: "note" }, model.reason),
    el("dl", { className: "details" }, ...list),
    el("div", { className: "actions" }, ...actions.map((action) => button(action, model.name))),
  );
}

function button(action, name) {
  return el("button", {
    type: "button",
    className: action === "unload" ? "danger" : "quiet",
    textContent: CONTROLS[action],
    ariaLabel: `${CONTROLS[action]} ${name}`,
    onclick: (event) => control(action, name, event.target),
  });
}

/** Loading again is a reload: the server swaps when the new one is ready. */
async function control(action, name, pressed) {
  const path = `/v2/repository/models/${encodeURIComponent(name)}/${action === "unload" ? "unload" : "load"}`;
  for (const other of pressed.parentNode.children) other.disabled = true;
  say(`${CONTROLS[action]} ${name}…`);
  try {
    await request(path, { body: {} });
    say(`${CONTROLS[action]} ${name}: done.`);
  } catch (error) {
    say(error.message, true);
  }
  shown = ""; // draws the buttons that were disabled again, also where nothing has changed
  signals.dispatchEvent(new Event("models-changed"));
  await show();
  focusOn(name);
}

async function showDoctor() {
  const place = byId("doctor");
  try {
    const reports = await getJson("/debug/prefix");
    const seen = reports.filter((report) => report.prompts > 0);
    place.replaceChildren(...(seen.length ? seen.map(advice) : [el("p", {}, "No prompts yet.")]));
  } catch (error) {
    place.replaceChildren(el("p", { className: "note" }, error.message));
  }
}

function advice(report) {
  const told = `${share(report.hit_rate)} of the tokens of the last ${report.prompts} prompts were in the cache.`;
  const items = report.divergences.slice(0, MAX_ADVICE).map((found) =>
    el(
      "li",
      {},
      `Prompts that leave the others at character ${found.character}, ${found.kind}: ${found.prompts}. ${found.hint}`,
      el("code", {}, `…${found.before}`, ...found.values.flatMap((value) => [el("mark", {}, value), " "])),
    ),
  );
  return el("section", {}, el("h3", {}, report.model), el("p", {}, told), el("ul", { className: "advice" }, ...items));
}
