// The layers of a run: their columns, what is derived from them, and the panel of the selected one.

const LAYERS = DATA.layers;
const COUNT = LAYERS.name.length;
const bound = (index) => (index < 0 ? "none" : decoded(LAYERS.bound, index));
const duration = (ps) => show(ps, "ps");
const shapeOf = (index) => decoded(LAYERS.shape, index) || "-";
const stay = (index) => LAYERS.end[index] - LAYERS.start[index];
// Arithmetic intensity: MACs per byte of DRAM traffic; null without MACs, Infinity without traffic.
const intensity = (index) => (LAYERS.macs[index] ? LAYERS.macs[index] / LAYERS.dram[index] : null);
const rate = (index) => (stay(index) ? (LAYERS.macs[index] * 1e12) / stay(index) : 0);
// Energy of the priced actions; null if no action of the layer has a price.
const energyOf = (index) => DATA.energy.layers[index];
const energyName = DATA.energy.unknown.length ? "energy of priced actions" : "energy";
const BOUNDS = [["compute", "circle"], ["memory", "square"], ["latency", "triangle"]];
const boundLegend = () => BOUNDS.map(([name, shape]) => [`bound by ${name}`, name, svg("path", { d: MARKS[shape](7, 7, 5), class: name })]);

function layerLines(index) {
  if (index < 0) return ["no layer"];
  return [LAYERS.name[index], `${decoded(LAYERS.kind, index)}, bound by ${bound(index)}, adds ${duration(LAYERS.added[index])}`];
}
const step = (by) => selection.set(clamp(selection.index + by, 0, COUNT - 1));

function layerPanel(host) {
  const panel = html("div", { class: "panel", "aria-live": "polite" });
  host.append(panel);
  const fact = ([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, value));
  selection.watch((index) => {
    panel.replaceChildren(html("h3", {}, LAYERS.name[index]), html("dl", { class: "facts" }, ...layerFacts(index).map(fact)),
      html("div", { class: "controls" }, button("previous", () => step(-1)), button("next", () => step(1)),
        button("zoom to it", () => timeView.zoomTo(index)), button("clear", () => selection.set(-1))));
    if (index < 0) panel.replaceChildren(html("p", { class: "note" }, "None. Click a layer in a picture or a row, or use the arrow keys."));
  });
  panel.append(html("p", { class: "note" }, "None. Click a layer in a picture or a row, or use the arrow keys."));
}
function layerFacts(index) {
  if (index < 0) return [];
  const macs = LAYERS.macs[index];
  return [
    ["kind", decoded(LAYERS.kind, index)],
    ["result", shapeOf(index)],
    ["adds", `${duration(LAYERS.added[index])} = ${percent(LAYERS.added[index], DATA.time)} of the time`],
    ["runs", `${duration(LAYERS.start[index])} to ${duration(LAYERS.end[index])}: ${duration(stay(index))}`],
    ["bound", bound(index)],
    ["why", LAYERS.why[index]],
    ["busiest unit", decoded(LAYERS.unit, index)],
    ["instructions", grouped(LAYERS.instructions[index])],
    ["MACs", macs ? `${show(macs, "MAC")}, ${show(rate(index), "MAC/s")}` : "none"],
    ["DRAM", show(LAYERS.dram[index], "B")],
    ["arithmetic intensity", macs ? intensityText(index) : "no MACs"],
    [energyName, show(energyOf(index), "fJ")],
  ];
}
const intensityText = (index) => (LAYERS.dram[index] ? `${significant(intensity(index))} MAC/B` : "no DRAM traffic");

function layerTable(host) {
  const text = (name, of) => ({ name, value: of, text: of });
  const number = (name, of, unit, total) => ({ name, value: of, text: (index) => show(of(index), unit), right: true,
    total: total && ((rows) => show(sum(rows.map(of)), unit)) });
  const column = (key) => (index) => LAYERS[key][index];
  table(host, {
    label: "layers",
    count: COUNT,
    columns: [
      text("layer", column("name")),
      text("kind", (index) => decoded(LAYERS.kind, index)),
      text("shape", shapeOf),
      number("adds", column("added"), "ps", true),
      number("start", column("start"), "ps"),
      number("runs", stay, "ps"),
      number("MACs", column("macs"), "", true),
      number("DRAM", column("dram"), "B", true),
      { name: "MAC/B", value: intensity, right: true, text: (index) => (intensity(index) === null ? "-" : intensityShort(index)) },
      number(energyName, energyOf, "fJ", true),
      text("bound", bound),
      text("why", column("why")),
    ],
    filters: [{ name: "kind", value: (index) => decoded(LAYERS.kind, index) }, { name: "bound", value: bound }],
  });
}
const sum = (values) => values.reduce((total, value) => (value === null ? total : (total || 0) + value), values.length ? null : 0);
const intensityShort = (index) => (LAYERS.dram[index] ? significant(intensity(index)) : "\u221e");
