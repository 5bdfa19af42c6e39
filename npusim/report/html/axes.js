// Scales, ticks and axes.

function linear([low, high], [a, b]) {
  const span = high - low || 1;
  const scale = (value) => a + ((value - low) / span) * (b - a);
  scale.back = (at) => low + ((at - a) / (b - a)) * span;
  scale.ticks = (count) => roundTicks(low, high, count);
  return scale;
}
function logarithmic([low, high], [a, b]) {
  const from = Math.log10(low);
  const span = Math.log10(high) - from || 1;
  const scale = (value) => a + ((Math.log10(value) - from) / span) * (b - a);
  scale.back = (at) => 10 ** (from + ((at - a) / (b - a)) * span);
  scale.ticks = (count) => logTicks(low, high, count);
  return scale;
}
function roundTicks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  if (!(raw > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999);
  const ticks = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high * (1 + 1e-12); n += 1) ticks.push(n * step);
  return ticks;
}
function logTicks(low, high, count) {
  const ticks = [];
  const decades = Math.log10(high / low);
  const inner = decades * 3 <= count ? [1, 2, 5] : [1];
  const step = Math.max(1, Math.ceil(decades / Math.max(1, count)));
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += step) {
    for (const factor of inner) {
      const tick = factor * 10 ** power;
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
    }
  }
  return ticks.length > 1 ? ticks : roundTicks(low, high, count);
}

// Axes of a box [left, top, right, bottom].
function bottomAxis(scale, [left, top, right, bottom], title, format) {
  const ticks = scale.ticks(Math.max(2, (right - left) / 110));
  return svg("g", { class: "axis" },
    ...ticks.map((tick) => svg("line", { x1: scale(tick), x2: scale(tick), y1: top, y2: bottom, class: "grid" })),
    ...ticks.map((tick) => svg("text", { x: scale(tick), y: bottom + 16, "text-anchor": "middle" }, format(tick))),
    svg("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "rule" }),
    svg("text", { x: right, y: bottom + 33, "text-anchor": "end", class: "title" }, title));
}
function leftAxis(scale, [left, top, right, bottom], title, format) {
  const ticks = scale.ticks(Math.max(2, (bottom - top) / 45));
  return svg("g", { class: "axis" },
    ...ticks.map((tick) => svg("line", { x1: left, x2: right, y1: scale(tick), y2: scale(tick), class: "grid" })),
    ...ticks.map((tick) => svg("text", { x: left - 6, y: scale(tick) + 4, "text-anchor": "end" }, format(tick))),
    svg("line", { x1: left, x2: left, y1: top, y2: bottom, class: "rule" }),
    svg("text", { x: left - 60, y: top - 8, class: "title" }, title));
}

// Names below the bars of layers, as many as there is room for: in the middle of each bar, or of the first and the last.
const LETTER = 7.2; // width of a letter at most, on average
function layerNames(names, [left, , right, bottom], slot) {
  if (!names.length) return [];
  const most = Math.floor((right - left) / 2 / LETTER) - 1;
  const short = (name, room) => (name.length > room ? `${name.slice(0, Math.max(0, room - 1))}\u2026` : name);
  if (names.every((name) => name.length * LETTER <= slot)) {
    return names.map((name, n) => svg("text", { x: left + (n + 0.5) * slot, y: bottom + 16, "text-anchor": "middle", class: "axis" }, name));
  }
  const ends = [[left, "start", names[0]], ...(names.length > 1 ? [[right, "end", names[names.length - 1]]] : [])];
  return ends.map(([x, anchor, name]) => svg("text", { x, y: bottom + 16, "text-anchor": anchor, class: "axis" }, short(name, most)));
}

// Marks that differ in shape as well as in colour.
const MARKS = {
  circle: (x, y, r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`,
  square: (x, y, r) => `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
  triangle: (x, y, r) => `M${x} ${y - 1.2 * r}l${1.2 * r} ${2.1 * r}h${-2.4 * r}z`,
  diamond: (x, y, r) => `M${x} ${y - 1.3 * r}l${1.3 * r} ${1.3 * r}l${-1.3 * r} ${1.3 * r}l${-1.3 * r} ${-1.3 * r}z`,
  cross: (x, y, r) => `M${x - r} ${y - r}l${2 * r} ${2 * r}m${-2 * r} 0l${2 * r} ${-2 * r}`,
};
const near = (value) => Math.round(value * 10) / 10;
const box = (x, y, width, height) => `M${near(x)} ${near(y)}h${near(width)}v${near(height)}h${near(-width)}z`;
function nearest(points, x, y, reach) {
  let found = -1;
  let best = reach * reach;
  for (const point of points) {
    const far = (point.x - x) ** 2 + (point.y - y) ** 2;
    if (far <= best) [found, best] = [point.index, far];
  }
  return found;
}
function placeIn(root, event) {
  const view = root.viewBox.baseVal;
  const seen = root.getBoundingClientRect();
  return [((event.clientX - seen.left) / seen.width) * view.width, ((event.clientY - seen.top) / seen.height) * view.height];
}
