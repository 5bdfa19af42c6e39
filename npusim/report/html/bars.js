// A bar per layer, in order of completion.

function layerBars(host, title, of, unit) {
  const values = indices(COUNT).map(of);
  const total = values.reduce((sum, value) => sum + (value || 0), 0);
  if (values.every((value) => value === null)) {
    host.append(html("p", { class: "note" }, `${title}: unknown.`));
    return;
  }
  let slot = 1;
  const view = picture(host, 170, `${title}, layer by layer`, (width, height) => {
    const frame = [70, 26, width - 14, height - 22];
    const y = linear([0, Math.max(...values, 1)], [frame[3], frame[1]]);
    slot = (frame[2] - frame[0]) / COUNT;
    const wide = Math.max(slot - Math.min(2, slot / 4), 0.5);
    const kinds = { compute: "", memory: "", latency: "" };
    values.forEach((value, n) => {
      if (n !== selection.index) kinds[bound(n)] += box(frame[0] + n * slot, y(value || 0), wide, frame[3] - y(value || 0));
    });
    return [leftAxis(y, frame, "", (tick) => show(tick, unit)), svg("text", { x: frame[0], y: 14 }, `${title}: ${show(total, unit)} in all layers`),
      ...layerNames(LAYERS.name, frame, slot),
      svg("g", { class: selection.index < 0 ? "" : "dim" }, ...Object.entries(kinds).map(([name, d]) => svg("path", { d, class: `${name} o3` }))),
      ...chosenBar(values, frame, y, slot, wide)];
  });
  view.keys.textContent = "";
  const at = (event) => {
    const [px] = placeIn(view.root, event);
    const index = Math.floor((px - 70) / slot);
    return index >= 0 && index < COUNT ? index : -1;
  };
  view.root.addEventListener("click", (event) => at(event) >= 0 && selection.set(at(event)));
  view.root.addEventListener("dblclick", (event) => timeView.zoomTo(at(event)));
  view.root.addEventListener("mousemove", (event) => {
    if (at(event) < 0) tip.hide();
    else tip.show(event, [...layerLines(at(event)), `${show(values[at(event)], unit)} = ${percent(values[at(event)], total)}`]);
  });
  view.root.addEventListener("mouseleave", () => tip.hide());
  onKeys(view.root, { ArrowLeft: () => step(-1), ArrowRight: () => step(1), Home: () => selection.set(0), End: () => selection.set(COUNT - 1),
    Enter: () => timeView.zoomTo(selection.index) });
  selection.watch(view.redraw);
}
function chosenBar(values, [left, , , bottom], y, slot, wide) {
  const index = selection.index;
  if (index < 0) return [];
  const top = y(values[index] || 0);
  return [svg("path", { d: box(left + index * slot, top, Math.max(wide, 2), Math.max(bottom - top, 1)), class: `${bound(index)} chosen outlined` })];
}
