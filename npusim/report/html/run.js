// The page of a run.

start(() => {
  roofline(byId("roofline"));
  layerPanel(byId("layer"));
  gantt(byId("lanes"));
  memories(byId("lanes"));
  const bars = byId("bars");
  bars.append(legend(boundLegend().map(([name, className]) => [name, className])));
  layerBars(bars, "time added", (index) => LAYERS.added[index], "ps");
  layerBars(bars, "DRAM traffic", (index) => LAYERS.dram[index], "B");
  layerBars(bars, energyName, energyOf, "fJ");
  if (DATA.energy.unknown.length) bars.append(html("p", { class: "note" }, `Energy: no price is known of ${DATA.energy.unknown.join(", ")}.`));
  bars.append(html("p", { class: "keys" }, "Keys: \u2190 \u2192 previous and next layer, Enter zooms the timeline to it."));
  layerTable(byId("layers"));
  if (COUNT) selection.set(LAYERS.added.indexOf(Math.max(...LAYERS.added)));
});
