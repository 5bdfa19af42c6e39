// Units and memories over the same interval of time, which mouse and keys move.

const timeView = {
  from: 0,
  to: Math.max(1, DATA.time),
  watchers: [],
  set(from, to) {
    const length = clamp(to - from, Math.min(1000, DATA.time), Math.max(1, DATA.time));
    this.from = clamp(from, 0, Math.max(0, DATA.time - length));
    this.to = this.from + length;
    for (const watcher of this.watchers) watcher();
  },
  zoom(factor, at = (this.from + this.to) / 2) {
    this.set(at - (at - this.from) * factor, at + (this.to - at) * factor);
  },
  pan(part) {
    const by = (this.to - this.from) * part;
    const from = clamp(this.from + by, 0, DATA.time - (this.to - this.from));
    this.set(from, from + this.to - this.from);
  },
  zoomTo(index) {
    if (index < 0) return;
    const room = Math.max(stay(index) * 0.1, 1);
    this.set(LAYERS.start[index] - room, LAYERS.end[index] + room);
  },
};

// Times in one unit, with as many decimals as are needed to distinguish neighbouring ticks at any zoom.
function moments(x, [left, , right]) {
  const ticks = x.ticks(Math.max(2, (right - left) / 110));
  const [size, unit] = TIMES.find(([least]) => timeView.to >= least) || TIMES[TIMES.length - 1];
  const apart = ticks.length > 1 ? (ticks[1] - ticks[0]) / size : 1;
  const decimals = clamp(Math.ceil(-Math.log10(apart) - 1e-9), 0, 12);
  return (tick) => `${(tick / size).toFixed(decimals)} ${unit}`;
}

// Columns of a lane as bars. Starts are differences to the previous one.
function unfold(lane) {
  let at = 0;
  return lane.start.map((by, n) => {
    at += by;
    return { start: at, end: at + lane.length[n], busy: lane.busy[n], layer: lane.layer[n], count: lane.count[n] };
  });
}
const LANES = DATA.lanes.map((lane) => ({ unit: lane.unit, bars: unfold(lane) }));
const PATH = { unit: DATA.path.unit, bars: unfold(DATA.path) };
const ROW = 26;
const LEFT = 112;

function gantt(host) {
  const rows = [PATH, ...LANES];
  const view = picture(host, rows.length * ROW + 62, "Units over time", (width, height) => {
    const frame = [LEFT, 14, width - 14, height - 44];
    const x = linear([timeView.from, timeView.to], [frame[0], frame[2]]);
    return [bottomAxis(x, frame, "simulated time", moments(x, frame)), ...selectedSpan(x, frame),
      ...rows.flatMap((lane, n) => laneMarks(lane, frame[1] + n * ROW, x, frame))];
  });
  view.keys.textContent = "Keys: \u2190 \u2192 move, + \u2212 zoom, 0 all, Enter zooms to the selected layer, \u2191 \u2193 previous and next layer. "
    + "Mouse: drag moves, the wheel zooms while the picture has the focus, a double click zooms to a layer.";
  const buttons = [button("\u2212", () => timeView.zoom(2), { "aria-label": "zoom out" }), button("+", () => timeView.zoom(0.5), { "aria-label": "zoom in" }),
    button("all", () => timeView.set(0, DATA.time)), button("selected layer", () => timeView.zoomTo(selection.index))];
  host.insertBefore(html("div", { class: "controls" }, ...buttons), view.root);
  host.insertBefore(legend(boundLegend().map(([name, cls]) => [name, cls])), view.root);
  const many = [PATH, ...LANES].some((lane) => lane.bars.some((bar) => bar.count > 1));
  host.append(html("p", { class: "note" }, "The first row is the critical path: at each moment, the layer that the end of the job waits for. Neighbouring layers differ in shade.",
    many ? " A bar may stand for several instructions, or waits, of a layer. Its darkness is the share of its time that they take." : ""));
  timeControls(view, (event) => barAt(rows, view.root, event));
  const label = () => view.root.setAttribute("aria-label", `Units over time, from ${duration(Math.round(timeView.from))} to ${duration(Math.round(timeView.to))}`
    + (selection.index < 0 ? "" : `; selected: ${LAYERS.name[selection.index]}`));
  selection.watch(() => { view.redraw(); label(); });
  timeView.watchers.push(() => { view.redraw(); label(); });
  label();
}

function laneMarks(lane, top, x, [left, , right]) {
  const kinds = new Map();
  for (const { className, from, to } of merged(lane.bars, x, left, right)) {
    kinds.set(className, (kinds.get(className) || "") + box(from, top + 4, Math.max(to - from, 0.6), ROW - 8));
  }
  return [
    svg("text", { x: left - 8, y: top + ROW / 2 + 4, "text-anchor": "end" }, lane.unit),
    svg("g", { class: selection.index < 0 ? "" : "dim" }, ...[...kinds].map(([className, d]) => svg("path", { d, class: className }))),
  ];
}
// Bars within the same pixel are drawn once, so that a view of all layers costs no more than that of one.
function merged(bars, x, left, right) {
  const shown = [];
  const last = new Map();
  for (const bar of bars) {
    const [from, to] = [Math.max(left, x(bar.start)), Math.min(right, x(bar.end))];
    if (to < left || from > right) continue;
    const className = look(bar);
    const before = last.get(className);
    if (before && to - before.from < 1) before.to = Math.max(before.to, to);
    else {
      const mark_ = { className, from, to };
      shown.push(mark_);
      last.set(className, mark_);
    }
  }
  return shown;
}
function look(bar) {
  if (bar.layer === selection.index && bar.layer >= 0) return `${bound(bar.layer)} chosen`;
  const dark = bar.end > bar.start ? bar.busy / (bar.end - bar.start) : 1;
  const shade = clamp(Math.ceil(dark * 3), 1, 3);
  return `${bound(bar.layer)} o${Math.max(0, shade - (bar.layer % 2 === 1 ? 1 : 0))}`;
}
function selectedSpan(x, [left, top, right, bottom]) {
  if (selection.index < 0) return [];
  const from = clamp(x(LAYERS.start[selection.index]), left, right);
  const to = clamp(x(LAYERS.end[selection.index]), left, right);
  return [svg("rect", { x: from, y: top, width: Math.max(to - from, 1), height: bottom - top, class: "span" })];
}

function barAt(rows, root, event) {
  const [px, py] = placeIn(root, event);
  const lane = rows[Math.floor((py - 14) / ROW)];
  if (!lane || px < LEFT) return null;
  const scale = (timeView.to - timeView.from) / (root.viewBox.baseVal.width - 14 - LEFT);
  const time = timeView.from + (px - LEFT) * scale;
  const far = (bar) => Math.max(bar.start - time, time - bar.end, 0);
  let found = null;
  for (const bar of lane.bars) if (far(bar) <= 3 * scale && (!found || far(bar) < far(found))) found = bar;
  return found && { ...found, unit: lane.unit };
}
function barLines(bar) {
  const length = bar.end - bar.start;
  const what = bar.unit === PATH.unit ? `waited for ${duration(bar.busy)} of` : bar.count === 1 ? `${bar.unit}: one instruction,` : `${bar.unit}: ${bar.count} instructions, busy ${percent(bar.busy, length)} of`;
  return [...layerLines(bar.layer), `${what} ${duration(length)} from ${duration(bar.start)}`];
}

function timeControls({ root }, at) {
  const timeAt = (event) => {
    const [px] = placeIn(root, event);
    return timeView.from + ((px - LEFT) / (root.viewBox.baseVal.width - 14 - LEFT)) * (timeView.to - timeView.from);
  };
  let drag = null;
  root.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, from: timeView.from, to: timeView.to, moved: false }; });
  addEventListener("pointerup", () => { setTimeout(() => { drag = null; }); });
  root.addEventListener("pointermove", (event) => {
    if (drag && event.buttons) {
      const by = ((drag.x - event.clientX) / root.clientWidth) * (drag.to - drag.from);
      drag.moved = drag.moved || Math.abs(drag.x - event.clientX) > 3;
      if (drag.moved) timeView.set(clamp(drag.from + by, 0, DATA.time - (drag.to - drag.from)), clamp(drag.to + by, drag.to - drag.from, DATA.time));
      return;
    }
    const bar = at(event);
    if (bar) tip.show(event, barLines(bar));
    else tip.hide();
  });
  root.addEventListener("mouseleave", () => tip.hide());
  root.addEventListener("click", (event) => {
    const bar = !(drag && drag.moved) && at(event);
    if (bar && bar.layer >= 0) selection.set(bar.layer);
  });
  root.addEventListener("dblclick", (event) => {
    const bar = at(event);
    if (bar) timeView.zoomTo(bar.layer);
  });
  // Only with the focus, because readers scroll past the chart.
  root.addEventListener("wheel", (event) => {
    if (document.activeElement !== root && !event.ctrlKey) return;
    event.preventDefault();
    timeView.zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event));
  }, { passive: false });
  onKeys(root, { ArrowLeft: () => timeView.pan(-0.2), ArrowRight: () => timeView.pan(0.2), "+": () => timeView.zoom(0.5), "=": () => timeView.zoom(0.5),
    "-": () => timeView.zoom(2), 0: () => timeView.set(0, DATA.time), Home: () => timeView.set(0, DATA.time),
    Enter: () => timeView.zoomTo(selection.index), ArrowUp: () => step(-1), ArrowDown: () => step(1) });
}

function memories(host) {
  if (!DATA.memory.length) {
    host.append(html("p", { class: "note" }, "The contents of the memories are unknown: the program has no memory map."));
    return;
  }
  const kinds = new Map(DATA.memory.flatMap((each) => each.kinds.map((kind) => [kind.colour, kind.name])));
  host.append(html("h3", {}, "Memories"), legend([...kinds].sort().map(([colour, name]) => [name, `k${colour}`])));
  for (const each of DATA.memory) memory(host, each);
}
function memory(host, each) {
  let at = 0;
  const times = each.time.map((by) => { at += by; return at; });
  const high = each.peak * 2 >= each.capacity ? each.capacity : each.peak * 1.15 || 1;
  const title = `${each.memory}: peak ${show(each.peak, "B")} = ${percent(each.peak, each.capacity)} of ${show(each.capacity, "B")}`;
  const view = picture(host, 132, title, (width, height) => {
    const frame = [LEFT, 22, width - 14, height - 26];
    const x = linear([timeView.from, timeView.to], [frame[0], frame[2]]);
    const y = linear([0, high], [frame[3], frame[1]]);
    const capacity = high === each.capacity ? [svg("line", { x1: frame[0], x2: frame[2], y1: frame[1], y2: frame[1], class: "limit" })] : [];
    const peak = x(each.peak_ps);
    const arrow = peak >= frame[0] && peak <= frame[2] ? [svg("path", { d: MARKS.triangle(peak, frame[3] + 5, 4), class: "none" })] : [];
    return [leftAxis(y, frame, "", (tick) => show(tick, "B")), svg("text", { x: 2, y: 12 }, title), ...selectedSpan(x, frame),
      ...stacked(each, times, x, y, frame), ...capacity, ...arrow];
  });
  if (!each.all) host.append(html("p", { class: "note" }, "Downsampled: of neighbouring moments, the one with the highest occupancy is drawn."));
  view.keys.textContent = "";
  view.root.tabIndex = -1;
  timeView.watchers.push(view.redraw);
  selection.watch(view.redraw);
}
function stacked(each, times, x, y, [left, , right]) {
  const base = times.map(() => 0);
  return each.kinds.map((kind, k) => {
    let d = "";
    times.forEach((time, n) => {
      const bytes = each.bytes[k][n];
      const from = Math.max(left, x(time));
      const to = Math.min(right, x(n + 1 < times.length ? times[n + 1] : DATA.time));
      if (bytes && to > from) d += box(from, y(base[n] + bytes), to - from, y(base[n]) - y(base[n] + bytes));
      base[n] += bytes;
    });
    return svg("path", { d, class: `k${kind.colour}` });
  });
}
