/** Pictures through a vision model: boxes, classes, or embeddings with the colors of their patches. */

import { ApiError, getJson, request } from "./api.js";
import { drawBoxes, drawColors, drawPicture } from "./drawing.js";
import { byId, el, fillSelect } from "./dom.js";
import { seconds, share } from "./format.js";
import { drawMasks } from "./masks.js";
import { showSimilarity } from "./similarity.js";

const LOWEST_SCORE = { detect: 0.05, segment: 0.2 }; // asked for once; the slider then needs no request
const MAX_PICTURES = 16;
const STAGES = ["decode", "preprocess", "queue", "infer", "postprocess"];

let models = new Map();
/** {name, file, bitmap, card, result}: card holds the elements, result what the server said of it. */
let pictures = [];
let running = null;

export function startVision() {
  const drop = byId("drop");
  for (const name of ["dragenter", "dragover"]) drop.addEventListener(name, (event) => hover(event, true));
  drop.addEventListener("dragleave", (event) => hover(event, false));
  drop.addEventListener("drop", (event) => {
    hover(event, false);
    add(event.dataTransfer.files);
  });
  byId("files").addEventListener("change", (event) => {
    const files = [...event.target.files]; // a copy: emptying the field empties its list
    event.target.value = "";
    add(files);
  });
  byId("vision-model").addEventListener("change", run);
  byId("prompts").addEventListener("change", run);
  byId("threshold").addEventListener("input", showDetections);
  byId("clear-pictures").addEventListener("click", clear);
  return { modelsChanged: listModels };
}

function hover(event, isOver) {
  event.preventDefault();
  byId("drop").classList.toggle("over", isOver);
}

function listModels(all) {
  const before = byId("vision-model").value;
  models = new Map(all.filter((model) => model.kind === "vision").map((model) => [model.id, model]));
  fillSelect(byId("vision-model"), [...models.keys()], "no vision model is served");
  showTask();
  if (byId("vision-model").value !== before) run();
}

function showTask() {
  const task = models.get(byId("vision-model").value)?.task;
  byId("threshold-field").hidden = !(task in LOWEST_SCORE);
  byId("threshold").min = LOWEST_SCORE[task] ?? 0;
  byId("prompts-field").hidden = task !== "segment";
}

function clear() {
  running?.abort();
  for (const picture of pictures) picture.bitmap.close();
  pictures = [];
  byId("pictures").replaceChildren();
  byId("similarity").replaceChildren();
  say("");
}

function say(text, isError = false) {
  const place = byId("vision-status");
  place.textContent = text;
  place.classList.toggle("error", isError);
}

async function add(files) {
  const failed = [];
  for (const file of files) {
    try {
      const bitmap = await createImageBitmap(file, { imageOrientation: "from-image" });
      pictures.push({ name: file.name, file, bitmap, card: addCard(file.name), result: null });
    } catch {
      failed.push(file.name);
    }
  }
  for (const old of pictures.splice(0, Math.max(0, pictures.length - MAX_PICTURES))) {
    old.bitmap.close();
    old.card.root.remove();
  }
  await run();
  if (failed.length) say(`The browser cannot show ${failed.join(", ")}.`, true);
}

function addCard(name) {
  const card = {
    canvas: el("canvas", { role: "img", ariaLabel: name }),
    colors: el("canvas", { role: "img", className: "colors", hidden: true }),
    facts: el("ul", { className: "facts" }),
    note: el("p", { className: "note" }),
  };
  const views = el("div", { className: "canvases" }, card.canvas, card.colors);
  const caption = el("figcaption", {}, el("strong", { title: name }, name), card.facts, card.note);
  card.root = el("figure", { className: "card picture" }, views, caption);
  byId("pictures").append(card.root);
  return card;
}

async function run() {
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  showTask();
  const model = models.get(byId("vision-model").value);
  for (const picture of pictures) reset(picture);
  byId("similarity").replaceChildren();
  if (!model || !pictures.length) return;
  if (model.task === "segment" && !prompts().length) {
    say("Say what to look for.");
    byId("prompts").focus();
    return;
  }
  say("Asking…");
  try {
    await show(model, await answers(model, signal), signal);
  } catch (error) {
    if (error.name !== "AbortError") say(error.message, true);
  }
}

/** What a promptable model is asked. */
function prompts() {
  return byId("prompts").value.split(",").map((text) => text.trim()).filter(Boolean);
}

function reset({ bitmap, card, name }) {
  drawPicture(card.canvas, bitmap);
  card.canvas.ariaLabel = name;
  card.colors.hidden = true;
  card.facts.replaceChildren();
  card.note.textContent = "";
}

/** One result per picture, also where the server has refused all of them. */
async function answers(model, signal) {
  const fields = { model: model.id };
  if (model.task in LOWEST_SCORE) fields.score_threshold = LOWEST_SCORE[model.task];
  if (model.task === "segment") fields.prompts = prompts();
  try {
    return await getJson(`/v1/vision/${model.task}`, { body: form(fields, pictures), signal });
  } catch (error) {
    if (error instanceof ApiError && error.body?.results) return error.body;
    throw error;
  }
}

function form(fields, chosen) {
  const data = new FormData();
  for (const [name, values] of Object.entries(fields)) for (const value of [values].flat()) data.append(name, value);
  for (const { file, name } of chosen) data.append("images", file, name);
  return data;
}

async function show(model, answer, signal) {
  const good = answer.results.filter((result) => !result.error);
  say(`${good.length} of ${pictures.length} pictures by ${model.id} in ${seconds(answer.seconds)}.`);
  answer.results.forEach((result, index) => showResult(pictures[index], result, model.task));
  if (model.task === "embed" && good.length) await showFeatures(model, good, signal);
}

function showResult(picture, result, task) {
  picture.result = result;
  const { note, facts } = picture.card;
  note.classList.toggle("error", Boolean(result.error));
  if (result.error) {
    note.textContent = result.error.message;
    return;
  }
  const spent = STAGES.map((stage) => `${stage} ${seconds(result.seconds[stage])}`).join(" · ");
  note.textContent = `${result.width} × ${result.height} · ${spent}`;
  if (task === "classify") facts.replaceChildren(...result.classes.map((one) => fact(one.name, one.score)));
  else if (task === "embed") facts.replaceChildren(el("li", { className: "plain" }, `${result.dim} numbers`));
  else showBoxes(picture);
}

function showDetections() {
  const { value } = byId("threshold");
  byId("threshold-value").value = Number(value).toFixed(2);
  for (const picture of pictures) if (picture.result?.detections) showBoxes(picture);
}

function showBoxes({ bitmap, card, name, result }) {
  const threshold = Number(byId("threshold").value);
  const found = result.detections.filter((detection) => detection.score >= threshold);
  drawPicture(card.canvas, bitmap);
  drawMasks(card.canvas, found, result);
  drawBoxes(card.canvas, found, result);
  card.facts.replaceChildren(...found.map((detection) => fact(detection.name, detection.score)));
  card.canvas.ariaLabel = `${name}: ${found.length} detections`;
}

function fact(name, score) {
  const bar = el("span", { className: "bar" });
  bar.style.setProperty("--share", score);
  return el("li", {}, el("span", {}, name), bar, el("span", { className: "score" }, share(score)));
}

/** Cosines between the pictures, and their patches in the colors of a basis that they share. */
async function showFeatures(model, good, signal) {
  const chosen = good.map((result) => pictures[result.index]);
  showSimilarity(byId("similarity"), chosen.map((picture) => picture.name), good.map((result) => result.embedding));
  if (!good.every((result) => result.grid_hw)) {
    say(`${byId("vision-status").textContent} This model has no patch features to color.`);
    return;
  }
  const response = await request("/console/api/pca", { body: form({ model: model.id }, chosen), signal });
  const colors = await createImageBitmap(await response.blob());
  chosen.forEach(({ card, name }, index) => {
    drawColors(card.colors, colors, index, good[index].grid_hw);
    card.colors.ariaLabel = `Patch features of ${name} as colors`;
    card.colors.hidden = false;
  });
  colors.close();
}
