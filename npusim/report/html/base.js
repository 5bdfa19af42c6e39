// Common part of all pages: data, elements, number formats, colours, and the selection.

const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

// Elements. Texts become text nodes and attributes are set one by one, so no name can become markup.
function put(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}
// Long names break before a part, not within a word. Texts that are copied stay whole.
const WHOLE = new Set(["pre", "option"]);
const breakable = (child) => (typeof child !== "string" || !/\S{12}/.test(child) ? [child]
  : child.split(/(?<=[./_+:=(-])(?=[A-Za-z])/).flatMap((part, n) => (n ? [document.createElement("wbr"), part] : [part])));
const html = (tag, attributes, ...children) =>
  put(document.createElement(tag), attributes, WHOLE.has(tag) ? children : children.flatMap(breakable));
const svg = (tag, attributes, ...children) => put(document.createElementNS(SVG, tag), attributes, children);
const byId = (id) => document.getElementById(id);

// Number formats of the text reports, see npusim/report/format.py.
const TIMES = [[1e12, "s"], [1e9, "ms"], [1e6, "us"], [1e3, "ns"], [1, "ps"]];
const DECIMAL = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
const BASE = { fJ: [1e-15, "J"], uW: [1e-6, "W"], um2: [1e-6, "mm2"] };
const SMALL = [[1, ""], [1e-3, "m"], [1e-6, "u"], [1e-9, "n"], [1e-12, "p"], [1e-15, "f"]];

function significant(value) {
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1000) return String(value);
  if (size < 0.01) return Number(value.toPrecision(3)).toExponential();
  return value.toFixed(Number(size.toFixed(2)) < 10 ? 2 : Number(size.toFixed(1)) < 100 ? 1 : 0);
}
function scaled(value, unit, prefixes) {
  const size = Math.abs(value);
  const [factor, prefix] = prefixes.find(([least]) => 2000 * size >= 1999 * least) || prefixes[prefixes.length - 1];
  return `${significant(value / factor)} ${prefix}${unit}`.trim();
}
function show(value, unit) {
  if (value === null || value === undefined) return "unknown";
  if (value === 0) return `0 ${unit === "ps" ? "s" : BASE[unit] ? BASE[unit][1] : unit}`.trim();
  if (unit === "ps") return scaled(value, "", TIMES);
  if (unit === "um2") return `${significant(value * 1e-6)} mm2`;
  if (BASE[unit]) return scaled(value * BASE[unit][0], BASE[unit][1], [...DECIMAL.slice(0, 5), ...SMALL]);
  return scaled(value, unit, DECIMAL);
}
const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1).replace(/^-(0\.0)$/, "$1")} %` : "-");
const grouped = (value) => String(value).replace(/\B(?=(\d{3})+(?!\d))/g, "\u00a0");
const indices = (count) => Array.from({ length: count }, (_, index) => index);
// A column that contains each text once.
const decoded = ({ texts, rows }, index) => texts[rows === 0 ? 0 : rows[index]];
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

// The selection, shared by all charts.
const selection = {
  index: -1,
  watchers: [],
  watch(watcher) {
    this.watchers.push(watcher);
  },
  set(index) {
    if (index === this.index) return;
    this.index = index;
    for (const watcher of this.watchers) watcher(index);
  },
};

// A tooltip at the pointer. Without a pointer, focus and the panel of the selection give the same information.
const tip = {
  box: byId("tip"),
  show(event, lines) {
    this.box.replaceChildren(...lines.map((line) => html("div", {}, line)));
    this.box.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = this.box;
    this.box.style.left = `${clamp(event.clientX + 14, 0, Math.max(0, innerWidth - width - 4))}px`;
    this.box.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 8 : event.clientY + 18}px`;
  },
  hide() {
    this.box.hidden = true;
  },
};

// Charts are drawn for their width. The view box lets print and zoom scale them.
const pictures = [];
// ``least``: minimum width; a narrower chart scrolls.
function picture(host, height, label, draw, least = 320) {
  const root = svg("svg", { class: "picture", tabindex: 0, role: "group", "aria-label": label });
  const keys = html("p", { class: "keys" });
  host.append(root, keys);
  const redraw = () => {
    const width = Math.max(least, host.clientWidth || 960);
    root.style.width = width > (host.clientWidth || 960) ? `${width}px` : "";
    const tall = typeof height === "function" ? height(width) : height;
    root.setAttribute("viewBox", `0 0 ${width} ${tall}`);
    root.replaceChildren(...draw(width, tall));
  };
  pictures.push(redraw);
  return { root, redraw, keys };
}
function redrawAll() {
  for (const redraw of pictures) redraw();
}

function onKeys(element, actions) {
  element.addEventListener("keydown", (event) => {
    const action = !event.ctrlKey && !event.metaKey && !event.altKey && actions[event.key];
    if (!action) return;
    event.preventDefault();
    action(event);
  });
}

function legend(entries) {
  const item = ([name, className, shape]) =>
    html("li", {}, svg("svg", { class: "swatch", viewBox: "0 0 14 14", "aria-hidden": "true" }, shape || square(className)), name);
  return html("ul", { class: "legend" }, ...entries.map(item));
}
const square = (className) => svg("rect", { x: 1, y: 1, width: 12, height: 12, class: className });

function choice(label, options, value, change) {
  const box = html("select", { onchange: () => change(box.value) }, ...options.map(([key, name]) => html("option", { value: key }, name)));
  box.value = value;
  return html("label", {}, `${label} `, box);
}
const button = (label, action, extra) => html("button", { type: "button", onclick: action, ...extra }, label);

// Colours follow the system until the reader chooses.
function theme() {
  const states = [["", "as the system"], ["light", "light"], ["dark", "dark"]];
  let state = 0;
  byId("theme").addEventListener("click", () => {
    state = (state + 1) % states.length;
    const [name, said] = states[state];
    if (name) document.documentElement.dataset.theme = name;
    else delete document.documentElement.dataset.theme;
    byId("theme").textContent = `Colours: ${said}`;
  });
}

function start(draw) {
  theme();
  draw();
  redrawAll();
  let waiting = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(redrawAll);
  });
  document.documentElement.dataset.ready = "";
}
