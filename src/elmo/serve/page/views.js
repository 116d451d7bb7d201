// What stands around the map: the chosen use, the matrix, the tasks' weights.

import { byId, el, inContext, setAlike } from "./dom.js";

const NEAREST = 6;

const SOURCES = {
  yours: "yours",
  wikipedia_en: "Wikipedia",
  wikipedia_simple: "Simple Wikipedia",
  gutenberg_books: "Gutenberg",
  frus_diplomatic: "US diplomacy",
};

const source = (use) => el("span", { class: "source" }, SOURCES[use.source] ?? use.source);

const useButton = (use, number, choose, around) =>
  el("button", { type: "button", class: "plain", onclick: () => choose(number) }, ...inContext(use, around));

export const showList = (uses, choose) =>
  byId("list").replaceChildren(...uses.map((use, i) => el("li", {}, useButton(use, i, choose, 9), " ", source(use))));

export const showSentence = (use) => byId("sentence").replaceChildren(...inContext(use), " ", source(use));

export const showNearest = (uses, chosen, cosines, choose) => {
  const others = uses.map((_, i) => i).filter((i) => i !== chosen);
  others.sort((a, b) => cosines[b] - cosines[a]);
  const items = others.slice(0, NEAREST).map((i) => {
    const score = el("span", { class: "score" }, cosines[i].toFixed(2));
    setAlike(score, cosines[i]);
    return el("li", {}, score, useButton(uses[i], i, choose, 7));
  });
  const list = byId("nearest");
  const focused = [...list.children].findIndex((item) => item.contains(document.activeElement));
  list.replaceChildren(...(items.length ? items : [el("li", { class: "quiet" }, "This is the only use.")]));
  list.children[focused]?.querySelector("button")?.focus(); // or who has pressed Enter there would be nowhere
};

const WAYS = [
  ["forward", "From before"],
  ["backward", "From behind"],
  ["both", "From both"],
];

export const showPredicted = (predicted) => {
  byId("predicted").hidden = predicted === null;
  if (predicted === null) return;
  byId("candidates").replaceChildren(
    ...WAYS.map(([way, title]) =>
      el(
        "div",
        {},
        el("h4", { id: `way-${way}` }, title),
        el("ol", { "aria-labelledby": `way-${way}` }, ...predicted[way].map(candidate)),
      ),
    ),
  );
};

const candidate = ({ word, probability }) => {
  const percent = 100 * probability;
  const item = el("li", {}, el("span", { class: "word" }, word), el("span", { class: "score" }, share(percent)));
  item.style.setProperty("--share", `${percent}%`);
  return item;
};

const share = (percent) => (percent < 1 ? "<1 %" : `${Math.round(percent)} %`);

// A sentence's tokens head rows and columns as they are; uses of a word need their contexts.
const headings = (uses) => {
  const [first, ...others] = uses.map((use) => use.tokens.join());
  const sentence = others.every((other) => other === first);
  return uses.map((use) => (sentence ? [use.tokens[use.position]] : inContext(use, 2)));
};

export const showMatrix = ({ rows, columns, cosines }, layer) => {
  const table = cosines[layer];
  const head = headings(columns).map((parts) => el("th", { scope: "col" }, el("span", {}, ...parts)));
  const body = headings(rows).map((parts, i) => {
    const best = Math.max(...table[i]);
    const cells = table[i].map((cosine) => cell(cosine, cosine === best && columns.length > 1));
    return el("tr", {}, el("th", { scope: "row" }, ...parts), ...cells);
  });
  const mean = table.flat().reduce((sum, one) => sum + one, 0) / (rows.length * columns.length);
  const size = `${rows.length} × ${columns.length} tokens`;
  byId("matrix").replaceChildren(
    el(
      "table",
      {},
      el("caption", {}, `Cosines of ${size}, ${mean.toFixed(2)} on average; the best of each row is framed.`),
      el("thead", {}, el("tr", {}, el("td"), ...head)),
      el("tbody", {}, ...body),
    ),
  );
};

const cell = (cosine, best) => {
  const made = el("td", { class: best ? "best" : false }, cosine.toFixed(2).replace(/^(-?)0\./, "$1."));
  setAlike(made, cosine);
  return made;
};

export const showTasks = (tasks, layers, adopt) => {
  const rows = tasks.flatMap((task) => Object.entries(task.weights).map(([place, shares]) => [task, place, shares]));
  if (rows.length) return byId("learned").replaceChildren(...rows.map((row) => learned(row, layers, adopt)));
  const [serve, task] = ["elmo serve --task FOLDER", "elmo task"].map((command) => el("code", {}, command));
  byId("learned").replaceChildren(
    el("p", {}, "No task model is here. Start the server with ", serve, ", a folder that ", task, " has made."),
  );
};

const learned = ([task, place, shares], layers, adopt) => {
  const all = shares.length === layers; // a task may have been given some of the layers only
  const parts = shares.map((value, i) => {
    const part = el("span", { class: `part layer-${i}` }, `${all ? `layer ${i}: ` : ""}${Math.round(100 * value)} %`);
    part.style.setProperty("--share", value);
    return part;
  });
  const use = el("button", { type: "button", onclick: () => adopt(shares) }, "Use in the mix");
  return el(
    "div",
    { class: "learned", role: "group", "aria-label": `${task.name}, ${task.task}, at the ${place}` },
    el("p", {}, el("b", {}, task.name), ` ${task.task}, at the ${place}`),
    el("div", { class: "bar" }, ...parts),
    ...(all ? [use] : []),
  );
};
