// Elements made from data. Text goes in as text: nothing here, or anywhere on the page, parses a string as markup.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

const filled = (node, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
};

export const el = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);

export const drawn = (tag, attributes = {}, ...children) =>
  filled(document.createElementNS(SVG, tag), attributes, children);

// The words around a use, the word itself emphasised.
export const inContext = ({ tokens, position }, around = Infinity) => {
  const start = Math.max(0, position - around);
  const end = Math.min(tokens.length, position + 1 + around);
  const before = (start > 0 ? "… " : "") + tokens.slice(start, position).map((token) => token + " ").join("");
  const behind = tokens.slice(position + 1, end).map((token) => " " + token).join("");
  return [before, el("b", {}, tokens[position]), behind + (end < tokens.length ? " …" : "")];
};

export const contextText = (use, around) => inContext(use, around).map((part) => part.textContent ?? part).join("");

// How alike two uses are, 0 to 1, as something that CSS can mix colours by.
export const setAlike = (node, cosine) =>
  node.style.setProperty("--alike", `${Math.round(100 * Math.min(1, Math.max(0, cosine)))}%`);
