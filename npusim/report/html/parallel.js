// Parallel coordinates: a line for each design through all its knobs and figures; a filter on an axis keeps the lines that pass through it.

const [TOP, BOTTOM] = [46, 26];
const MOST_LETTERS = 28;
const UNKNOWN = -0.07; // where a line crosses an axis for which the design has no value: below its lower end

function parallel(host) {
  const axes = [...KNOBS.filter((knob) => knob.levels.length > 1).map(knobAxis), ...METRICS.filter((each) => each.figures.some((value) => value !== null)).map(metricAxis)];
  const ranges = axes.map(() => null);
  filters.kept = (index) => ranges.every((range, n) => !range || (axes[n].at[index] >= range[0] - 1e-9 && axes[n].at[index] <= range[1] + 1e-9));
  let focus = -1;
  const line = (className) => svg("path", { d: "M0 7h14", class: `lines ${className}` });
  host.append(legend([["Pareto front", "", line("best")], ["others", "", line("kept")], ["filtered out", "", line("out")], ["selected", "", line("own")]]));
  const frame = html("div", { class: "scroll wide" });
  host.append(frame);
  // Room for the labels at the right of each axis, and for the names above, which alternate between two lines.
  const labels = axes.map((axis) => 12 + LETTER * Math.max(...axis.ticks.map(([, text]) => text.length)));
  const names = axes.map((axis) => LETTER * titleOf(axis).length);
  const [left, right] = [names[0] / 2 + 4, Math.max(names[axes.length - 1] / 2 + 4, labels[axes.length - 1])];
  const apart = Math.max(60, ...labels.slice(0, -1), ...axes.slice(2).map((_, n) => (names[n] + names[n + 2]) / 4 + 4));
  const view = picture(frame, 360, `${DESIGNS} designs on ${axes.length} axes`, (width, height) => {
    const x = (n) => left + (axes.length > 1 ? (n / (axes.length - 1)) * (width - left - right) : 0);
    const y = (t) => height - BOTTOM - t * (height - TOP - BOTTOM);
    return [...lineGroups(axes, x, y), ...axes.map((axis, n) => axisGroup(axis, n, x(n), y, ranges[n]))];
  }, left + right + apart * (axes.length - 1));
  view.root.setAttribute("tabindex", -1);
  view.keys.textContent = "Keys on an axis: \u2191 \u2193 set and move the filter, Shift with them resizes it, Esc clears it.";
  const said = html("p", { class: "note", role: "status" });
  host.append(html("div", { class: "controls" }, button("clear filters", () => { ranges.fill(null); told_(); })), said);
  const told_ = () => {
    view.redraw();
    filters.changed();
    const left = indices(DESIGNS).filter(filters.kept).length;
    said.textContent = `${left} of ${DESIGNS} designs pass the filters`;
    const again = focus >= 0 && view.root.querySelector(`[data-axis="${focus}"]`);
    if (again) again.focus({ preventScroll: true }); // the axis was drawn anew
  };
  view.root.addEventListener("focusin", (event) => { focus = Number((event.target.closest("[data-axis]") || { dataset: { axis: -1 } }).dataset.axis); });
  mouseFilter(view, ranges, told_, (n) => { focus = n; });
  keyFilter(view, ranges, told_);
  selection.watch(view.redraw);
}
function titleOf({ name, goal }) {
  const short = name.length > MOST_LETTERS ? `${name.slice(0, MOST_LETTERS - 1)}\u2026` : name;
  return `${short}${goal === "min" ? " \u2193" : goal === "max" ? " \u2191" : ""}`;
}
function knobAxis(knob) {
  const last = knob.levels.length - 1;
  const every = Math.ceil(knob.levels.length / 12);
  return { name: knob.name, goal: "", at: knob.rows.map((row) => (row < 0 ? NaN : row / last)),
    ticks: knob.levels.map((text, n) => [n / last, text]).filter((_, n) => n % every === 0 || n === last) };
}
function metricAxis(each) {
  const known = each.figures.filter((value) => value !== null);
  const [low, high] = known.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
  const scale = low > 0 && high / low > 20 ? logarithmic([low, high], [0, 1]) : linear([low, high], [0, 1]);
  const flat = low === high;
  return { name: each.name, goal: each.goal, at: each.figures.map((value) => (value === null ? NaN : flat ? 0.5 : scale(value))),
    ticks: flat ? [[0.5, show(low, each.unit)]] : [[0, show(low, each.unit)], [0.5, show(scale.back(0.5), each.unit)], [1, show(high, each.unit)]] };
}
function lineGroups(axes, x, y) {
  const line = (index) => axes.map((axis, n) => {
    const t = axis.at[index];
    return `${n ? "L" : "M"}${near(x(n))} ${near(y(Number.isNaN(t) ? UNKNOWN : t))}`;
  }).join("");
  const path = (chosen, className, opacity) => svg("path", { d: chosen.map(line).join(""), class: `lines ${className}`, "stroke-opacity": opacity });
  const [kept, out] = [[], []];
  for (const index of indices(DESIGNS)) (filters.kept(index) ? kept : out).push(index);
  const own = selection.index >= 0 ? [path([selection.index], "own", 1)] : [];
  return [path(out, "out", 0.5), path(kept.filter((index) => !FRONT.has(index)), "kept", clamp(40 / (kept.length || 1), 0.04, 0.5)),
    path(kept.filter((index) => FRONT.has(index)), "best", 0.9), ...own];
}
function axisGroup(axis, n, x, y, range) {
  const words = range ? `kept from ${Math.round(range[0] * 100)} to ${Math.round(range[1] * 100)} percent of the axis` : "no filter";
  return svg("g", { class: "axis", tabindex: 0, role: "slider", "data-axis": n, "aria-label": axis.name, "aria-valuetext": words,
    "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": range ? Math.round(range[0] * 100) : 0 },
  svg("rect", { x: x - 14, y: y(1) - 6, width: 28, height: y(0) - y(1) + 12, class: "hit" }),
  svg("line", { x1: x, x2: x, y1: y(0), y2: y(1), class: "rule" }),
  ...(range ? [svg("rect", { x: x - 8, y: y(range[1]), width: 16, height: Math.max(2, y(range[0]) - y(range[1])), class: "brush" })] : []),
  ...axis.ticks.map(([t, text]) => svg("text", { x: x + 6, y: y(t) + 4 }, text)),
  svg("text", { x, y: n % 2 ? 14 : 30, "text-anchor": "middle", class: "title" }, titleOf(axis),
    axis.name.length > MOST_LETTERS ? svg("title", {}, axis.name) : null));
}
function mouseFilter(view, ranges, told_, focus) {
  let drag = null;
  let waiting = 0;
  const partAt = (event) => {
    const [, py] = placeIn(view.root, event);
    const height = view.root.viewBox.baseVal.height;
    const part = (height - BOTTOM - py) / (height - TOP - BOTTOM);
    return part > 0.97 ? 1 : part < 0.03 ? 0 : part; // a pointer near an end selects the end
  };
  view.root.addEventListener("pointerdown", (event) => {
    const axis = event.target.closest("[data-axis]");
    if (axis) drag = { n: Number(axis.dataset.axis), from: partAt(event) };
  });
  addEventListener("pointermove", (event) => {
    if (!drag) return;
    const to = partAt(event);
    if (Math.abs(to - drag.from) < 0.02) return;
    ranges[drag.n] = [Math.min(drag.from, to), Math.max(drag.from, to)];
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(told_);
  });
  addEventListener("pointerup", (event) => {
    if (!drag) return;
    focus(drag.n);
    if (Math.abs(partAt(event) - drag.from) < 0.02) ranges[drag.n] = null; // a click without a drag clears the filter
    drag = null;
    told_();
  });
}
function keyFilter(view, ranges, told_) {
  const move = (event, by) => {
    const n = Number(event.target.dataset.axis);
    const range = ranges[n];
    if (!range) ranges[n] = by > 0 ? [0.5, 1] : [0, 0.5];
    else if (event.shiftKey) ranges[n] = [range[0], clamp(range[1] + by, range[0] + 0.05, 1)];
    else {
      const step = clamp(by, -range[0], 1 - range[1]);
      ranges[n] = [range[0] + step, range[1] + step];
    }
    told_();
  };
  onKeys(view.root, { ArrowUp: (event) => move(event, 0.1), ArrowDown: (event) => move(event, -0.1),
    Escape: (event) => { ranges[Number(event.target.dataset.axis)] = null; told_(); } });
}
