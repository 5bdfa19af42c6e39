// The roofline: the MAC rate of each layer, below the peak rate of the device and the bandwidth of its DRAM.

function roofline(host) {
  const points = indices(COUNT).filter((index) => LAYERS.macs[index] && rate(index));
  const without = COUNT - points.length;
  if (!points.length || !DATA.roofs.compute.length) {
    host.append(html("p", { class: "note" }, "No layer uses a matrix unit, so there is no roof to compare with."));
    return;
  }
  const ordered = [...points].sort((a, b) => intensity(a) - intensity(b) || a - b);
  let drawn = [];
  const view = picture(host, 380, `Roofline of ${points.length} layers`, (width, height) => {
    const frame = [70, 24, width - 14, height - 44];
    const scales = roofScales(points, frame);
    drawn = points.map((index) => pointOf(index, scales, frame));
    return [
      bottomAxis(scales.x, frame, "arithmetic intensity, MACs per byte of DRAM traffic", (tick) => show(tick, "")),
      leftAxis(scales.y, frame, "MAC/s", (tick) => show(tick, "")),
      ...roofLines(scales, frame),
      ...drawn.map(mark),
      ...ring(drawn.find((point) => point.index === selection.index)),
    ];
  });
  view.keys.textContent = "Keys: \u2190 \u2192 next layer by arithmetic intensity, Home and End the ends, Enter zooms the timeline to it.";
  host.insertBefore(legend([...boundLegend(), ["roof", "", svg("path", { d: "M0 7h14", class: "roof" })]]), view.root);
  const notes = [without ? `${without} of ${COUNT} layers have no MACs and are not shown. ` : "",
    "The size of a point is the time that its layer adds. Layers at the right edge have no DRAM traffic."];
  host.append(html("p", { class: "note" }, ...notes));
  const walk = (by) => {
    const at = ordered.indexOf(selection.index);
    selection.set(ordered[clamp(at < 0 ? 0 : at + by, 0, ordered.length - 1)]);
  };
  onKeys(view.root, { ArrowRight: () => walk(1), ArrowLeft: () => walk(-1), Home: () => selection.set(ordered[0]),
    End: () => selection.set(ordered[ordered.length - 1]), Enter: () => timeView.zoomTo(selection.index) });
  const under = (event) => nearest(drawn, ...placeIn(view.root, event), 14);
  view.root.addEventListener("click", (event) => under(event) >= 0 && selection.set(under(event)));
  view.root.addEventListener("mousemove", (event) => {
    const index = under(event);
    if (index < 0) tip.hide();
    else tip.show(event, [...layerLines(index), `${show(rate(index), "MAC/s")}, ${intensityText(index)}`]);
  });
  view.root.addEventListener("mouseleave", () => tip.hide());
  selection.watch(view.redraw);
}

function roofScales(points, [left, top, right, bottom]) {
  const rates = DATA.roofs.compute.map((roof) => roof.rate);
  const slopes = DATA.roofs.bandwidth.map((roof) => roof.rate);
  const finite = points.map(intensity).filter(Number.isFinite);
  const ridges = rates.map((rate_) => rate_ / slopes[0]);
  const [least, most] = [Math.min(...finite, ...ridges) / 3, Math.max(...finite, ...ridges) * 4];
  const low = Math.min(...points.map(rate)) / 2;
  return { x: logarithmic([least, most], [left, right]), y: logarithmic([low, Math.max(...rates) * 1.6], [bottom, top]), least, most, low };
}
function pointOf(index, { x, y, most }, [, , right]) {
  const total = Math.max(...LAYERS.added, 1);
  const size = 3.5 + 7 * Math.sqrt(LAYERS.added[index] / total);
  return { index, size, x: Number.isFinite(intensity(index)) ? x(Math.min(intensity(index), most)) : right, y: y(rate(index)) };
}
function mark({ index, x, y, size }) {
  const [, shape] = BOUNDS.find(([name]) => name === bound(index));
  return svg("path", { d: MARKS[shape](near(x), near(y), near(size)), class: `${bound(index)} o2`, "data-index": index });
}
const ring = (point) => (point ? [svg("circle", { cx: point.x, cy: point.y, r: point.size + 5, class: "ring" })] : []);

function roofLines({ x, y, least, most, low }, [left, , right]) {
  const top = Math.max(...DATA.roofs.compute.map((roof) => roof.rate));
  const lines = [];
  DATA.roofs.bandwidth.forEach((roof, at) => {
    const from = Math.max(least, low / roof.rate);
    const to = top / roof.rate;
    const name = `${roof.name}: ${show(roof.rate, "B/s")}`;
    lines.push(svg("path", { d: `M${x(from)} ${y(from * roof.rate)}L${x(to)} ${y(top)}`, class: at ? "roof second" : "roof" }));
    const turn = (Math.atan2(y(top) - y(from * roof.rate), x(to) - x(from)) * 180) / Math.PI;
    const [cx, cy] = [(x(from) + x(to)) / 2, (y(from * roof.rate) + y(top)) / 2];
    lines.push(svg("text", { transform: `translate(${cx} ${cy}) rotate(${turn})`, dy: at ? -6 : 16, "text-anchor": "middle" }, name));
  });
  DATA.roofs.compute.forEach((roof, at) => {
    const from = Math.min(roof.rate / DATA.roofs.bandwidth[0].rate, most);
    lines.push(svg("path", { d: `M${x(from)} ${y(roof.rate)}H${right}`, class: at ? "roof second" : "roof" }));
    lines.push(svg("text", { x: right - 4, y: y(roof.rate) - 6, "text-anchor": "end" }, `${roof.name}: ${show(roof.rate, "MAC/s")}`));
  });
  return lines;
}
