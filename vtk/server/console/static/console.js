/** The frame of the page: views, the key, the state of the server, and which models there are. */

import { ask, getJson, key, signals } from "./api.js";
import { startChat } from "./chat.js";
import { byId } from "./dom.js";
import { startMetrics } from "./metrics.js";
import { startModels } from "./models.js";
import { startVision } from "./vision.js";

const STATE_EVERY = 5000;
const tabs = [...document.querySelectorAll("[role=tab]")];
const views = { chat: startChat(), vision: startVision(), metrics: startMetrics(), models: startModels() };

function select(tab, { focus = false } = {}) {
  for (const other of tabs) {
    const isChosen = other === tab;
    other.setAttribute("aria-selected", isChosen);
    other.tabIndex = isChosen ? 0 : -1;
    byId(other.getAttribute("aria-controls")).hidden = !isChosen;
  }
  if (focus) tab.focus();
  const name = tab.getAttribute("aria-controls");
  history.replaceState(null, "", `#${name}`);
  views[name].shown?.();
}

function moveFocus(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const to = { Home: 0, End: tabs.length - 1 }[event.key] ?? tabs.indexOf(event.target) + (step ?? NaN);
  if (Number.isNaN(to)) return;
  event.preventDefault();
  select(tabs[(to + tabs.length) % tabs.length], { focus: true });
}

/** The models that are ready, for the pickers of the views. */
async function listModels() {
  try {
    const { data } = await getJson("/v1/models");
    for (const view of Object.values(views)) view.modelsChanged?.(data);
  } catch (error) {
    showState("failed", error.message);
  }
}

let known = "";

/** Shows the state of the server, and lists the models again when any of them has changed. */
async function watchState() {
  try {
    const health = await (await ask("/health")).json();
    const ready = health.models.filter((model) => model.state === "ready").length;
    showState(health.status, `${health.status} · ${ready} of ${health.models.length} models · ${health.version}`);
    const now = JSON.stringify(health.models);
    if (now !== known) await listModels();
    known = now;
  } catch (error) {
    known = "";
    showState("failed", error.message);
  }
}

function showState(state, text) {
  const place = byId("server");
  place.dataset.state = state;
  if (place.textContent !== text) place.textContent = text;
}

function useKey(event) {
  event.preventDefault();
  key.set(byId("key").value.trim());
  byId("key-form").classList.remove("needed");
  signals.dispatchEvent(new Event("key-changed"));
  listModels();
}

for (const tab of tabs) {
  tab.addEventListener("click", () => select(tab));
  tab.addEventListener("keydown", moveFocus);
}
byId("key").value = key.get();
byId("key-form").addEventListener("submit", useKey);
byId("key-form").addEventListener("change", useKey);
signals.addEventListener("key-needed", () => byId("key-form").classList.add("needed"));
signals.addEventListener("models-changed", watchState);

select(byId(`tab-${location.hash.slice(1)}`) ?? tabs[0]);
watchState();
setInterval(() => document.hidden || watchState(), STATE_EVERY);
