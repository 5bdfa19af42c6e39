// Two figures of all designs: the Pareto front, dominated and infeasible designs, and the limits.

function scatter(host) {
  const objectives = METRICS.filter((each) => each.goal);
  const state = { x: objectives[0].name, y: (objectives[1] || METRICS.find((each) => each !== objectives[0]) || objectives[0]).name, log: true };
  let drawn = [];
  const view = picture(host, 400, "Pareto front", (width, height) => {
    const frame = [78, 24, width - 16, height - 44];
    const [mx, my] = [metric(state.x), metric(state.y)];
    const [x, y] = [scaleOf(mx, state.log, frame[0], frame[2]), scaleOf(my, state.log, frame[3], frame[1])];
    drawn = placed(mx, my, x, y);
    view.root.setAttribute("aria-label", `${mx.name} and ${my.name} of ${drawn.length} designs, ${DATA.front.length} on the Pareto front`);
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
  host.insertBefore(html("div", { class: "controls" }, choice("x axis", names, state.x, change("x")), choice("y axis", names, state.y, change("y")),
    choice("scale", [["log", "logarithmic"], ["lin", "linear"]], "log", (value) => { state.log = value === "log"; view.redraw(); })), view.root);
  host.insertBefore(legend(scatterLegend()), view.root);
  view.keys.textContent = "Keys: \u2190 \u2192 next design of the Pareto front, Home and End the ends.";
  const ends = () => drawn.filter((point) => FRONT.has(point.index)).sort((a, b) => a.x - b.x || a.index - b.index).map((point) => point.index);
  const walk = (to) => {
    const order = ends();
    const at = order.indexOf(selection.index);
    if (order.length) selection.set(order[clamp(at < 0 ? 0 : to(at, order.length), 0, order.length - 1)]);
  };
  onKeys(view.root, { ArrowRight: () => walk((at) => at + 1), ArrowLeft: () => walk((at) => at - 1), Home: () => walk(() => 0), End: () => walk((_, n) => n - 1) });
  const under = (event) => {
    const best = nearest(drawn.filter((point) => FRONT.has(point.index)), ...placeIn(view.root, event), 6);
    return best >= 0 ? best : nearest(drawn, ...placeIn(view.root, event), 12); // the Pareto front is drawn above dominated designs
  };
  view.root.addEventListener("click", (event) => under(event) >= 0 && selection.set(under(event)));
  view.root.addEventListener("mousemove", (event) => {
    const index = under(event);
    if (index < 0) tip.hide();
    else tip.show(event, designLines(index, [metric(state.x), metric(state.y)]));
  });
  view.root.addEventListener("mouseleave", () => tip.hide());
  selection.watch(view.redraw);
  filters.watchers.push(view.redraw);
}
const aim = (each) => (each.goal === "min" ? " (lower is better)" : each.goal === "max" ? " (higher is better)" : "");
function scatterLegend() {
  const own = (shape, className) => svg("path", { d: MARKS[shape](7, 7, 4), class: className });
  return [["Pareto front, estimated", "", own("circle", "point")], ["Pareto front, simulated", "", own("diamond", "point simulated")],
    ["dominated", "", own("circle", "dominated")], ["not feasible", "", own("cross", "refused")],
    ["limit", "", svg("path", { d: "M0 7h14", class: "limit" })]];
}
function scaleOf(each, log, from, to) {
  const known = [...each.figures, ...each.limits].filter((value) => value !== null);
  let [low, high] = known.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
  if (!known.length) [low, high] = [0, 1];
  // Figures that are not positive have no logarithm: they are shown on a linear scale.
  if (log && low > 0) return logarithmic([low / 1.15, high * 1.15], [from, to]);
  const room = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
  return linear([low - room, high + room], [from, to]);
}
function placed(mx, my, x, y) {
  return indices(DESIGNS).filter((index) => figure(mx, index) !== null && figure(my, index) !== null && filters.kept(index)).map((index) => ({
    index, x: x(figure(mx, index)), y: y(figure(my, index)), simulated: tierOf(mx, index) === "simulated" && tierOf(my, index) === "simulated",
  }));
}
// Thousands of points are two paths, not thousands of elements.
function crowds(points) {
  const far = points.filter((point) => !FRONT.has(point.index));
  const path = (chosen, shape) => chosen.map((point) => MARKS[point.simulated && shape === "circle" ? "diamond" : shape](near(point.x), near(point.y), 3)).join("");
  return [svg("path", { d: path(far.filter((point) => !DATA.feasible[point.index]), "cross"), class: "refused" }),
    svg("path", { d: path(far.filter((point) => DATA.feasible[point.index]), "circle"), class: "dominated" })];
}
const frontPoint = (point) => svg("path", { d: MARKS[point.simulated ? "diamond" : "circle"](near(point.x), near(point.y), 5),
  class: `point${point.simulated ? " simulated" : ""}`, "data-index": point.index });
// The Pareto front of these two figures, if both are objectives.
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
  const words = my.limits.map((value, n) => (value === null ? null : svg("text", { x: right - 4, y: y(value) + (n ? -5 : 14), "text-anchor": "end", class: "limit-text" },
    `${n ? "at most" : "at least"} ${show(value, my.unit)}`)));
  // The words of a vertical line are on the side with more room, at the end where no horizontal line has words.
  const low = my.limits.every((value) => value === null || y(value) < (top + bottom) / 2);
  const own = mx.limits.map((value, n) => {
    if (value === null) return null;
    const before = x(value) > (left + right) / 2;
    return svg("text", { x: x(value) + (before ? -5 : 5), y: (low ? bottom - 22 : top + 12) + 14 * n, "text-anchor": before ? "end" : "start",
      class: "limit-text" }, `${n ? "at most" : "at least"} ${show(value, mx.unit)}`);
  });
  return [...across, ...up, ...words, ...own].filter((each) => each);
}
