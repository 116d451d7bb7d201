// The map: a point for each use. One of them is in the tab order, and arrow keys go on to its neighbours.

import { byId, contextText, drawn, inContext, setAlike } from "./dom.js";

const MARGIN = 26;
const LABEL = { height: 14, width: 6.2, most: 26 };
const SPOTS = [
  { x: 13, y: 0, anchor: "start" },
  { x: -13, y: 0, anchor: "end" },
  { x: 0, y: -18, anchor: "middle" },
  { x: 0, y: 18, anchor: "middle" },
];
const DIAMOND = "M0 -8 L8 0 L0 8 L-8 0 Z";

const svg = byId("points");
let shown = { uses: [], planes: [], nodes: [], layer: 0, chosen: -1 };
let at = [];

const shape = (use) =>
  use.source === "yours" ? drawn("path", { class: "dot", d: DIAMOND }) : drawn("circle", { class: "dot", r: 6.5 });

const label = (use) => {
  const text = contextText(use, 2).replace(/^… | …$/g, "");
  return text.length > LABEL.most ? contextText(use, 1).replace(/^… | …$/g, "") : text;
};

const node = (use, number, total, choose) => {
  const name = `Use ${number + 1} of ${total}: ${contextText(use, 6)}`;
  const point = drawn(
    "g",
    { class: "point", role: "button", tabindex: -1, "aria-label": name, "aria-pressed": "false" },
    drawn("circle", { class: "ring", r: 11.5 }),
    shape(use),
    drawn("text", { class: "label", "aria-hidden": "true" }, label(use)),
  );
  point.addEventListener("click", () => choose(number));
  point.addEventListener("mouseenter", () => peek(use));
  point.addEventListener("focus", () => {
    rove(number);
    peek(use);
  });
  return point;
};

const peek = (use) => byId("peek").replaceChildren(...inContext(use, 14));

const rove = (number) => shown.nodes.forEach((one, i) => one.setAttribute("tabindex", i === number ? 0 : -1));

// New uses on the map; `choose` is told the number of one that was clicked or entered.
export const setUses = ({ uses, planes }, choose) => {
  const nodes = uses.map((use, number) => node(use, number, uses.length, choose));
  shown = { uses, planes, nodes, layer: shown.layer, chosen: -1 };
  svg.classList.add("new");
  svg.replaceChildren(...nodes);
  byId("peek").replaceChildren();
  if (nodes.length) rove(0);
};

export const setPlanes = (planes) => {
  shown.planes = planes;
  place();
};

// Points glide from layer to layer, but new ones do not come flying in.
export const setLayer = (layer) => {
  shown.layer = layer;
  place();
  requestAnimationFrame(() => requestAnimationFrame(() => svg.classList.remove("new")));
};

export const setChosen = (number) => {
  shown.chosen = number;
  shown.nodes.forEach((one, i) => one.setAttribute("aria-pressed", i === number));
  rove(number);
  peek(shown.uses[number]);
  place();
};

// The ramp runs from the least to the most alike of the others, so that it shows differences wherever they are.
export const setCosines = (cosines) => {
  const others = cosines.filter((_, i) => i !== shown.chosen);
  const [low, high] = [Math.min(...others), Math.max(...others)];
  const even = !(high - low > 0.001);
  shown.nodes.forEach((one, i) => setAlike(one, even ? cosines[i] : (cosines[i] - low) / (high - low)));
};

// All layers are drawn at one scale, so that a layer in which uses differ less is drawn closer together.
const scaleOf = (planes, width, height) => {
  const spans = planes.map((points) => [0, 1].map((axis) => span(points, axis)));
  const widest = [0, 1].map((axis) => Math.max(...spans.map((two) => two[axis].size), 1e-6));
  return { spans, unit: Math.min((width - 2 * MARGIN) / widest[0], (height - 2 * MARGIN) / widest[1]) };
};

const span = (points, axis) => {
  const values = points.map((point) => point[axis]);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return { middle: (low + high) / 2, size: high - low };
};

const place = () => {
  if (!shown.uses.length) return;
  const { width, height } = svg.getBoundingClientRect();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const { spans, unit } = scaleOf(shown.planes, width, height);
  const [across, down] = spans[shown.layer];
  at = shown.planes[shown.layer].map(([x, y]) => [
    width / 2 + (x - across.middle) * unit,
    height / 2 - (y - down.middle) * unit,
  ]);
  shown.nodes.forEach((one, i) => (one.style.transform = `translate(${at[i][0]}px, ${at[i][1]}px)`));
  placeLabels(width, height);
};

// Labels go where nothing else is, that of the chosen use first, then those of points far from labelled ones.
const placeLabels = (width, height) => {
  const taken = at.map(([x, y]) => ({ left: x - 7, right: x + 7, top: y - 7, bottom: y + 7 }));
  const given = new Set();
  for (const number of spreadOrder()) {
    const text = shown.nodes[number].querySelector("text");
    const [x, y] = at[number];
    const long = text.textContent.length * LABEL.width;
    const spot = SPOTS.map((one) => ({ ...one, box: boxAt(x + one.x, y + one.y, long, one.anchor) })).find(
      ({ box }) => fits(box, width, height) && !taken.some((other) => meet(box, other)),
    );
    if (!spot) continue;
    text.setAttribute("x", spot.x);
    text.setAttribute("y", spot.y);
    text.setAttribute("text-anchor", spot.anchor);
    taken.push(spot.box);
    given.add(number);
  }
  shown.nodes.forEach((one, i) => one.classList.toggle("labelled", given.has(i)));
};

const boxAt = (x, y, long, anchor) => {
  const left = x - { start: 0, middle: long / 2, end: long }[anchor];
  return { left, right: left + long, top: y - LABEL.height / 2, bottom: y + LABEL.height / 2 };
};

const fits = (box, width, height) => box.left > 2 && box.right < width - 2 && box.top > 2 && box.bottom < height - 2;

const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;

const spreadOrder = () => {
  const order = [Math.max(0, shown.chosen)];
  const far = at.map((point) => distance(point, at[order[0]]));
  while (order.length < at.length) {
    const next = far.indexOf(Math.max(...far));
    order.push(next);
    at.forEach((point, i) => (far[i] = Math.min(far[i], distance(point, at[next]))));
    order.forEach((i) => (far[i] = -1));
  }
  return order;
};

const distance = ([a, b], [c, d]) => Math.hypot(a - c, b - d);

const ARROWS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

// The nearest point that way; a step to the side counts twice. Points on one spot are gone through in their order.
const towards = (from, [right, down]) => {
  let best = -1;
  let least = Infinity;
  at.forEach(([x, y], i) => {
    const [dx, dy] = [x - at[from][0], y - at[from][1]];
    const ahead = dx * right + dy * down;
    const aside = Math.abs(dx * down) + Math.abs(dy * right);
    const further = ahead > 0.5 || (Math.hypot(dx, dy) <= 0.5 && (right + down > 0 ? i > from : i < from));
    const cost = ahead + 2 * aside + Math.abs(i - from) * 1e-3;
    if (i !== from && further && cost < least) [best, least] = [i, cost];
  });
  return best;
};

svg.addEventListener("keydown", (event) => {
  const from = shown.nodes.indexOf(event.target);
  if (from < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
  let next = -1;
  if (event.key in ARROWS) next = towards(from, ARROWS[event.key]);
  else if (event.key === "Home") next = 0;
  else if (event.key === "End") next = shown.nodes.length - 1;
  else if (event.key === "Enter" || event.key === " ") event.target.dispatchEvent(new MouseEvent("click"));
  else return;
  event.preventDefault();
  if (next >= 0) shown.nodes[next].focus();
});

new ResizeObserver(place).observe(svg);
