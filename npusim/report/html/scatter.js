// Two figures of all designs: the front, what it beats, what is not feasible, and the limits.

function scatter(host) {
  const aims = METRICS.filter((each) => each.goal);
  const state = { x: aims[0].name, y: (aims[1] || METRICS.find((each) => each !== aims[0]) || aims[0]).name, log: true };
  let drawn = [];
  const view = picture(host, 440, "Front", (width, height) => {
    const frame = [78, 24, width - 16, height - 44];
    const [mx, my] = [metric(state.x), metric(state.y)];
    const [x, y] = [scaleOf(mx, state.log, frame[0], frame[2]), scaleOf(my, state.log, frame[3], frame[1])];
    drawn = placed(mx, my, x, y);
    view.root.setAttribute("aria-label", `${mx.name} and ${my.name} of ${drawn.length} designs, ${DATA.front.length} on the front`);
    return [
      bottomAxis(x, frame, `${mx.name}${aim(mx)}`, (tick) => show(tick, mx.unit)),
      leftAxis(y, frame, `${my.name}${aim(my)}`, (tick) => show(tick, my.unit)),
      ...limitLines(mx, my, x, y, frame),
      ...crowds(drawn),
      ...staircase(drawn, mx, my),
      ...drawn.filter((point) => FRONT.has(point.index)).map(frontPoint),
      ...drawn.filter((point) => point.index === selection.index).map((point) => svg("circle", { cx: point.x, cy: point.y, r: 11, class: "ring" })),
    ];
  });
  const change = (key) => (value) => { state[key] = value; view.redraw(); };
  const names = METRICS.map((each) => [each.name, each.name]);
  host.insertBefore(html("div", { class: "controls" }, choice("across", names, state.x, change("x")), choice("up", names, state.y, change("y")),
    choice("scale", [["log", "logarithmic"], ["lin", "linear"]], "log", (value) => { state.log = value === "log"; view.redraw(); })), view.root);
  host.insertBefore(legend(scatterLegend()), view.root);
  view.keys.textContent = "Keys: \u2190 \u2192 next design of the front, Home and End the ends.";
  const ends = () => drawn.filter((point) => FRONT.has(point.index)).sort((a, b) => a.x - b.x || a.index - b.index).map((point) => point.index);
  const walk = (to) => {
    const order = ends();
    const at = order.indexOf(selection.index);
    if (order.length) selection.set(order[clamp(at < 0 ? 0 : to(at, order.length), 0, order.length - 1)]);
  };
  onKeys(view.root, { ArrowRight: () => walk((at) => at + 1), ArrowLeft: () => walk((at) => at - 1), Home: () => walk(() => 0), End: () => walk((_, n) => n - 1) });
  const under = (event) => {
    const best = nearest(drawn.filter((point) => FRONT.has(point.index)), ...placeIn(view.root, event), 6);
    return best >= 0 ? best : nearest(drawn, ...placeIn(view.root, event), 12); // the front lies over what it beats
  };
  view.root.addEventListener("click", (event) => under(event) >= 0 && selection.set(under(event)));
  view.root.addEventListener("mousemove", (event) => {
    const index = under(event);
    if (index < 0) tip.hide();
    else tip.show(event, designLines(index, [metric(state.x), metric(state.y)]));
  });
  view.root.addEventListener("mouseleave", () => tip.hide());
  selection.watch(view.redraw);
  brushes.watchers.push(view.redraw);
}
const aim = (each) => (each.goal === "min" ? " (less is better)" : each.goal === "max" ? " (more is better)" : "");
function scatterLegend() {
  const own = (shape, className) => svg("path", { d: MARKS[shape](7, 7, 4), class: className });
  return [["on the front, estimated", "", own("circle", "point")], ["on the front, simulated", "", own("diamond", "point simulated")],
    ["beaten", "", own("circle", "beaten")], ["not feasible", "", own("cross", "refused")],
    ["allowed at most or at least", "", svg("path", { d: "M0 7h14", class: "limit" })]];
}
function scaleOf(each, log, from, to) {
  const known = [...each.figures, ...each.limits].filter((value) => value !== null);
  let [low, high] = known.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
  if (!known.length) [low, high] = [0, 1];
  // A logarithm of what is not positive is nothing: such a figure is shown linearly.
  if (log && low > 0) return logarithmic([low / 1.15, high * 1.15], [from, to]);
  const room = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
  return linear([low - room, high + room], [from, to]);
}
function placed(mx, my, x, y) {
  return indices(DESIGNS).filter((index) => figure(mx, index) !== null && figure(my, index) !== null && brushes.kept(index)).map((index) => ({
    index, x: x(figure(mx, index)), y: y(figure(my, index)), simulated: tierOf(mx, index) === "simulated" && tierOf(my, index) === "simulated",
  }));
}
// Thousands of points are two paths, not thousands of elements.
function crowds(points) {
  const far = points.filter((point) => !FRONT.has(point.index));
  const path = (chosen, shape) => chosen.map((point) => MARKS[point.simulated && shape === "circle" ? "diamond" : shape](near(point.x), near(point.y), 3)).join("");
  return [svg("path", { d: path(far.filter((point) => !DATA.feasible[point.index]), "cross"), class: "refused" }),
    svg("path", { d: path(far.filter((point) => DATA.feasible[point.index]), "circle"), class: "beaten" })];
}
const frontPoint = (point) => svg("path", { d: MARKS[point.simulated ? "diamond" : "circle"](near(point.x), near(point.y), 5),
  class: `point${point.simulated ? " simulated" : ""}`, "data-index": point.index });
// The edge of what is reached in these two figures, where both are aims.
function staircase(points, mx, my) {
  if (!mx.goal || !my.goal || mx === my) return [];
  const value = (each, point) => figure(each, point.index) * (each.goal === "min" ? 1 : -1);
  const order = points.filter((point) => FRONT.has(point.index)).sort((a, b) => value(mx, a) - value(mx, b) || value(my, a) - value(my, b));
  let best = Infinity;
  const edge = order.filter((point) => { const keep = value(my, point) < best; best = Math.min(best, value(my, point)); return keep; });
  if (edge.length < 2) return [];
  return [svg("path", { d: `M${edge[0].x} ${edge[0].y}${edge.slice(1).map((point) => `H${point.x}V${point.y}`).join("")}`, class: "frontline" })];
}
function limitLines(mx, my, x, y, [left, top, right, bottom]) {
  const across = mx.limits.filter((value) => value !== null).map((value) => svg("line", { x1: x(value), x2: x(value), y1: top, y2: bottom, class: "limit" }));
  const up = my.limits.filter((value) => value !== null).map((value) => svg("line", { x1: left, x2: right, y1: y(value), y2: y(value), class: "limit" }));
  const words = my.limits.map((value, n) => (value === null ? null : svg("text", { x: right - 4, y: y(value) - 5, "text-anchor": "end", class: "limit-text" },
    `${n ? "at most" : "at least"} ${show(value, my.unit)}`)));
  const own = mx.limits.map((value, n) => (value === null ? null : svg("text", { x: x(value) + 5, y: top + 12, class: "limit-text" },
    `${n ? "at most" : "at least"} ${show(value, mx.unit)}`)));
  return [...across, ...up, ...words, ...own].filter((each) => each);
}
