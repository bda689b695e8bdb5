/** Conversations with a language model, streamed. */

import { events, request } from "./api.js";
import { byId, el, fillSelect } from "./dom.js";
import { Timing } from "./timing.js";

const NAMES = { user: "You", assistant: "Model" };
let messages = [];
let running = null;

export function startChat() {
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  byId("question").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  byId("stop").addEventListener("click", () => running?.abort());
  byId("new-chat").addEventListener("click", clear);
  byId("chat-settings").open = !matchMedia("(max-width: 760px)").matches;
  const temperature = byId("temperature");
  temperature.addEventListener("input", () => (byId("temperature-value").value = temperature.value));
  return { modelsChanged: listModels };
}

function listModels(models) {
  const names = models.filter((model) => model.kind === "llm").map((model) => model.id);
  fillSelect(byId("chat-model"), names, "no language model is served");
}

function clear() {
  running?.abort();
  messages = [];
  byId("turns").replaceChildren(el("p", { className: "empty" }, "A new chat."));
  byId("question").focus();
}

async function send() {
  const question = byId("question").value.trim();
  if (!question || running) return;
  byId("question").value = "";
  running = new AbortController();
  showRunning(true);
  const conversation = messages;
  conversation.push({ role: "user", content: question });
  addTurn("user").text.textContent = question;
  const turn = addTurn("assistant");
  const content = await answer(conversation, turn, running.signal);
  // A turn without an answer is not part of the conversation: most chat templates want them in pairs.
  if (content) conversation.push({ role: "assistant", content });
  else conversation.pop();
  running = null;
  showRunning(false);
}

function showRunning(isRunning) {
  byId("send").hidden = isRunning;
  byId("stop").hidden = !isRunning;
  byId("turns").setAttribute("aria-busy", isRunning);
}

function addTurn(role) {
  const text = el("div", { className: "text" });
  const figures = el("dl", { className: "figures" });
  const note = el("p", { className: "note" });
  const turns = byId("turns");
  turns.querySelector(".empty")?.remove();
  turns.append(el("article", { className: `turn ${role}` }, el("h2", {}, NAMES[role]), text, figures, note));
  turns.scrollTop = turns.scrollHeight;
  return { text, figures, note };
}

/** Streams one answer into its turn; what came of it, also where it was stopped or broke off. */
async function answer(conversation, turn, signal) {
  const timing = new Timing();
  const text = document.createTextNode("");
  turn.text.append(text);
  const ticking = setInterval(() => showFigures(turn, timing), 100);
  try {
    const response = await request("/v1/chat/completions", { body: bodyOf(conversation), signal });
    for await (const chunk of chunksOf(response)) show(chunk, text, timing, turn);
  } catch (error) {
    turn.note.textContent = error.name === "AbortError" ? "Stopped." : error.message;
    turn.note.classList.toggle("error", error.name !== "AbortError");
  } finally {
    clearInterval(ticking);
    if (timing.ttft === null) turn.figures.replaceChildren();
    else showFigures(turn, timing);
  }
  return text.data;
}

function bodyOf(conversation) {
  const system = byId("system").value.trim();
  return {
    model: byId("chat-model").value,
    messages: system ? [{ role: "system", content: system }, ...conversation] : conversation,
    temperature: Number(byId("temperature").value),
    max_tokens: Number(byId("max-tokens").value),
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
  };
}

async function* chunksOf(response) {
  for await (const { event, data } of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (event === "error") throw new Error(chunk.error.message);
    yield chunk;
  }
  throw new Error("The answer broke off.");
}

function show(chunk, text, timing, turn) {
  if (chunk.usage) timing.chunk(chunk.usage);
  const [choice] = chunk.choices;
  const turns = byId("turns");
  const follows = turns.scrollHeight - turns.scrollTop - turns.clientHeight < 60;
  if (choice?.delta.content) text.appendData(choice.delta.content);
  if (choice?.finish_reason === "length") turn.note.textContent = "Ended at the limit of tokens.";
  if (follows) turns.scrollTop = turns.scrollHeight;
}

function showFigures(turn, timing) {
  const shown = timing.figures().map(([name, value, title]) =>
    el("div", { title }, el("dt", {}, name), el("dd", {}, value)),
  );
  turn.figures.replaceChildren(...shown);
}
