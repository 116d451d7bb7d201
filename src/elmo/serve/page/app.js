// What the page is showing, and what happens when someone does something.

import { ask, latest } from "./api.js";
import { byId, el } from "./dom.js";
import * as map from "./map.js";
import * as views from "./views.js";

const state = {
  about: null, // what the server says of itself
  layer: 0, // as many as there are layers is the mix
  shares: [],
  word: "", // of the map, as is the text
  text: "",
  map: null,
  chosen: -1,
  use: null,
  compared: null,
};

const isMix = () => state.layer === state.about.layers;
const question = () => ({ word: state.word, text: state.text, shares: state.shares });

const showLayer = () => {
  const top = state.about.layers - 1;
  const name = isMix() ? "mix" : `${state.layer}`;
  byId("layer").setAttribute("aria-valuetext", isMix() ? "mix of all layers" : `layer ${name}`);
  byId("layer-note").replaceChildren(el("b", {}, isMix() ? "Mix. " : `Layer ${name}. `), note(top));
  byId("mix").hidden = !isMix();
  [...byId("ticks").children].forEach((tick, i) => tick.classList.toggle("here", i === state.layer));
  map.setLayer(state.layer);
  showUse();
  if (state.compared) views.showMatrix(state.compared, state.layer);
};

const note = (top) => {
  if (isMix()) return "All layers added up, each by its share, as a task model does. Its shares are yours to set.";
  if (state.layer === 0)
    return "The word by its letters alone: all that are spelled alike lie on one spot, whatever stands around them.";
  if (state.layer === top) return "The top, read in both directions. What a word means in its sentence counts most.";
  return "Read in both directions. The part a word plays counts more than what it means: nouns lie apart from verbs.";
};

const showUse = () => {
  if (!state.use) return;
  const cosines = state.use.cosines[state.layer];
  map.setCosines(cosines);
  views.showNearest(state.map.uses, state.chosen, cosines, choose);
};

const choose = latest(async (number) => {
  state.chosen = number;
  map.setChosen(number);
  views.showSentence(state.map.uses[number]);
  const use = await ask("/explorer/use", { ...question(), index: number });
  return () => {
    state.use = use;
    views.showPredicted(use.predicted);
    showUse();
  };
});

const title = ({ uses, total }) => {
  const of = state.word ? ["of ", el("b", {}, state.word)] : ["of words in your sentences"];
  const number = uses.length < total ? `${uses.length} of ${total} uses ` : `${total} ${total === 1 ? "use" : "uses"} `;
  if (total) return [number, ...of];
  if (state.word) return ["No use ", ...of, " in the sample or in your sentences"];
  return ["Give a word, or sentences of your own"];
};

// First the typed sentences; else the use that is furthest out, where the map has something to say.
const firstChoice = ({ uses, planes }) => {
  const own = state.word ? uses.findIndex((use) => use.source === "yours") : 0;
  if (own >= 0) return own;
  const out = planes[state.about.layers - 1].map(([x, y]) => Math.hypot(x, y));
  return out.indexOf(Math.max(...out));
};

const showMap = latest(async (word, text) => {
  const { shares } = state;
  byId("map").setAttribute("aria-busy", "true");
  const asked = ask("/explorer/map", { word, text, shares });
  const found = await asked.finally(() => byId("map").removeAttribute("aria-busy"));
  return () => {
    Object.assign(state, { word, text, map: found, chosen: -1, use: null });
    byId("map-title").replaceChildren(...title(found));
    byId("map").classList.toggle("empty", !found.uses.length);
    byId("use").hidden = !found.uses.length;
    [...byId("words").children].forEach((chip) => chip.setAttribute("aria-pressed", chip.textContent === word));
    map.setUses(found, choose);
    views.showList(found.uses, choose);
    if (!found.uses.length) return;
    map.setLayer(state.layer);
    choose(firstChoice(found));
    if (state.shares !== shares) remix(); // they were set meanwhile
  };
});

const showCompared = latest(async () => {
  const [first, second] = [byId("first").value, byId("second").value];
  const compared = await ask("/explorer/compare", { first, second, shares: state.shares });
  return () => {
    state.compared = compared;
    views.showMatrix(compared, state.layer);
  };
});

const remix = latest(async () => {
  const { map: before, chosen } = state;
  const moved = before?.uses.length ? await ask("/explorer/map", question()) : null;
  const use = moved && chosen >= 0 ? await ask("/explorer/use", { ...question(), index: chosen }) : null;
  return () => {
    if (state.compared) showCompared();
    if (!moved || state.map !== before) return; // another map has come meanwhile
    map.setPlanes(moved.planes);
    if (state.chosen === chosen) state.use = use;
    else choose(state.chosen);
    showUse();
  };
});

const setShares = (shares) => {
  const sum = shares.reduce((total, one) => total + one, 0);
  state.shares = sum > 0 ? shares.map((one) => one / sum) : shares.map(() => 1 / shares.length);
  byId("mix")
    .querySelectorAll("output")
    .forEach((out, i) => (out.textContent = `${Math.round(100 * state.shares[i])} %`));
};

const mixSliders = () => [...byId("mix").querySelectorAll("input")];

const adopt = (shares) => {
  mixSliders().forEach((slider, i) => (slider.value = 100 * shares[i]));
  setShares(shares);
  setLayer(state.about.layers);
  remix();
  byId("layers").scrollIntoView({ block: "nearest" });
};

const setLayer = (layer) => {
  state.layer = layer;
  byId("layer").value = layer;
  showLayer();
};

const makeMix = (shares) => {
  let waiting = 0;
  const moved = () => {
    setShares(mixSliders().map((slider) => Number(slider.value)));
    clearTimeout(waiting);
    waiting = setTimeout(remix, 150);
  };
  const slider = (share) =>
    el("input", { type: "range", min: 0, max: 100, value: Math.round(100 * share), oninput: moved });
  byId("mix").append(...shares.map((share, i) => el("label", {}, `Layer ${i}`, slider(share), el("output"))));
  setShares(shares);
};

const submitted = (id, act) =>
  byId(id).addEventListener("submit", (event) => {
    event.preventDefault();
    act();
  });

const wire = () => {
  submitted("ask", () => showMap(byId("word").value.trim(), byId("text").value.trim()));
  submitted("compare-form", showCompared);
  byId("layer").addEventListener("input", () => setLayer(Number(byId("layer").value)));
};

const pick = (word) => {
  byId("word").value = word;
  showMap(word, byId("text").value.trim());
};

const chip = (word) =>
  el("button", { type: "button", class: "chip", "aria-pressed": "false", onclick: () => pick(word) }, word);

const start = latest(async () => {
  const about = await ask("/explorer/about");
  return () => {
    state.about = about;
    const [numbers, sentences] = [about.dim, about.sentences].map((count) => count.toLocaleString("en"));
    byId("model").textContent =
      `The model: ${about.layers} layers of ${numbers} numbers a word. The sample: ${sentences} sentences.`;
    byId("layer").max = about.layers;
    byId("ticks").append(...[...about.shares.keys(), "mix"].map((name) => el("span", {}, `${name}`)));
    byId("words").append(...about.words.map(chip));
    makeMix(about.shares);
    views.showTasks(about.tasks, about.layers, adopt);
    wire();
    setLayer(about.layers - 1);
    pick(about.words[0]);
    showCompared();
  };
});

start();
