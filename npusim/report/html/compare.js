// The page of two runs: the time of the second minus that of the first.

const LAYERS = DATA.layers;
const COUNT = LAYERS.name.length;
const delta = (index) => LAYERS.second[index] - LAYERS.first[index];
const signed = (value, unit) => `${value > 0 ? "+" : value < 0 ? "\u2212" : ""}${show(Math.abs(value), unit || "ps")}`;
const way = (ps) => (ps > 0 ? "memory" : "compute"); // the colours of longer and of shorter
const ways = () => legend([["more in the second run", "memory"], ["less in the second run", "compute"]]);
const largest = (index) => LAYERS.parts[index].reduce((best, part) => (Math.abs(part[2]) > Math.abs(best[2]) ? part : best), ["", "", 0]);

function shares(host, { title, names, values, unit }) {
  const order = indices(names.length).sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]) || a - b);
  const high = Math.max(...values.map(Math.abs), 1);
  const words = order.map((n) => `${names[n]} ${signed(values[n], unit)}`).join(", ");
  const all = signed(values.reduce((sum, value) => sum + value, 0), unit);
  const wide = 500;
  const x = linear([-high, high], [190, wide - 80]);
  const rows = order.map((n, at) => [
    svg("text", { x: 118, y: 20 + at * 20, "text-anchor": "end" }, names[n]),
    svg("path", { d: box(Math.min(x(0), x(values[n])), 8 + at * 20, Math.max(Math.abs(x(values[n]) - x(0)), 1), 15), class: way(values[n]) }),
    svg("text", { x: values[n] > 0 ? x(values[n]) + 5 : x(values[n]) - 5, y: 20 + at * 20, "text-anchor": values[n] > 0 ? "start" : "end" }, signed(values[n], unit)),
  ]);
  const height = 16 + Math.max(1, order.length) * 20;
  host.append(html("figure", {}, html("figcaption", {}, html("b", {}, title), `: ${all} in all`),
    svg("svg", { viewBox: `0 0 ${wide} ${height}`, class: "picture", role: "img", "aria-label": `${title}: ${words || "no difference"}` },
      svg("line", { x1: x(0), x2: x(0), y1: 4, y2: height - 4, class: "rule" }), ...rows.flat())));
}

function deltas(host) {
  let slot = 1;
  const view = picture(host, 260, "Difference by layer", (width, height) => {
    const frame = [78, 22, width - 14, height - 24];
    const values = indices(COUNT).map(delta);
    const y = linear([Math.min(0, ...values), Math.max(0, ...values, 1)], [frame[3], frame[1]]);
    slot = (frame[2] - frame[0]) / Math.max(1, COUNT);
    const wide = Math.max(slot - Math.min(2, slot / 4), 0.5);
    const bar = (n) => box(frame[0] + n * slot, Math.min(y(0), y(values[n])), wide, Math.max(Math.abs(y(0) - y(values[n])), values[n] ? 1 : 0));
    const rest = indices(COUNT).filter((n) => n !== selection.index);
    const own = selection.index < 0 ? [] : [svg("path", { d: bar(selection.index), class: `${way(values[selection.index])} chosen outlined` })];
    return [leftAxis(y, frame, "", (tick) => signed(tick)), svg("line", { x1: frame[0], x2: frame[2], y1: y(0), y2: y(0), class: "rule" }),
      svg("g", { class: own.length ? "dim" : "" }, ...["memory", "compute"].map((name) =>
        svg("path", { d: rest.filter((n) => way(values[n]) === name).map(bar).join(""), class: `${name} o3` }))), ...own,
      ...layerNames(LAYERS.name, frame, slot)];
  });
  view.keys.textContent = "Keys: \u2190 \u2192 previous and next layer, Home and End the ends.";
  const at = (event) => {
    const index = Math.floor((placeIn(view.root, event)[0] - 78) / slot);
    return index >= 0 && index < COUNT ? index : -1;
  };
  view.root.addEventListener("click", (event) => at(event) >= 0 && selection.set(at(event)));
  view.root.addEventListener("mousemove", (event) => {
    if (at(event) < 0) tip.hide();
    else tip.show(event, [LAYERS.name[at(event)], `${signed(delta(at(event)))}: ${largest(at(event)).slice(0, 2).join(", ")}`]);
  });
  view.root.addEventListener("mouseleave", () => tip.hide());
  const walk = (by) => COUNT && selection.set(clamp(selection.index + by, 0, COUNT - 1));
  onKeys(view.root, { ArrowRight: () => walk(1), ArrowLeft: () => walk(-1), Home: () => walk(-COUNT), End: () => walk(COUNT) });
  selection.watch(view.redraw);
}

function panel(host) {
  const nothing = () => html("p", { class: "note" }, "None. Click a bar or a row, or use the arrow keys.");
  const own = html("div", { class: "panel", "aria-live": "polite" }, nothing());
  host.append(own);
  const fact = ([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, value));
  selection.watch((index) => {
    if (index < 0) return own.replaceChildren(nothing());
    const parts = [...LAYERS.parts[index]].sort((a, b) => Math.abs(b[2]) - Math.abs(a[2]));
    const rows = [["kind", decoded(LAYERS.kind, index)], ["in", decoded(LAYERS.in, index)], ["first", show(LAYERS.first[index], "ps")],
      ["second", show(LAYERS.second[index], "ps")], ["difference", signed(delta(index))], ...parts.map(([unit, cause, ps]) => [signed(ps), `${unit}, ${cause}`])];
    return own.replaceChildren(html("h3", {}, LAYERS.name[index]), html("dl", { class: "facts" }, ...rows.map(fact)));
  });
}

function layerTable(host) {
  const text = (name, of) => ({ name, value: of, text: of });
  const time = (name, of, told) => ({ name, value: of, text: (index) => told(of(index)), right: true,
    total: (rows) => told(rows.reduce((total, index) => total + of(index), 0)) });
  const plain = (ps) => show(ps, "ps");
  table(host, {
    label: "layers",
    count: COUNT,
    columns: [text("layer", (index) => LAYERS.name[index]), text("kind", (index) => decoded(LAYERS.kind, index)), text("in", (index) => decoded(LAYERS.in, index)),
      time("first", (index) => LAYERS.first[index], plain), time("second", (index) => LAYERS.second[index], plain), time("difference", delta, signed),
      text("unit", (index) => largest(index)[0]), text("cause", (index) => largest(index)[1])],
    filters: [{ name: "unit", value: (index) => largest(index)[0] }, { name: "cause", value: (index) => largest(index)[1] }],
    order: indices(COUNT).sort((a, b) => Math.abs(delta(b)) - Math.abs(delta(a)) || a - b),
  });
}

start(() => {
  const grid = html("div", { class: "halves" });
  byId("shares").append(ways(), grid);
  DATA.shares.forEach((each) => shares(grid, each));
  deltas(byId("bars"));
  panel(byId("layer"));
  layerTable(byId("table"));
  if (COUNT) selection.set(indices(COUNT).reduce((best, index) => (Math.abs(delta(index)) > Math.abs(delta(best)) ? index : best), 0));
});
