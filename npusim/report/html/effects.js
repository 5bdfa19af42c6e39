// Main effects: the mean of a metric at each value of a knob, one small picture per knob, largest swing first.

function effects(host) {
  const found = DATA.effects.filter((each) => each.knobs.length);
  if (!found.length) {
    host.append(html("p", { class: "note" }, "No knob has two values with known figures."));
    return;
  }
  const said = html("p", { class: "note", role: "status" });
  const grid = html("div", { class: "grid-of-three" });
  const draw = (name) => {
    const own = found.find((each) => each.metric === name);
    said.textContent = `Means of ${name} over ${own.count} feasible designs${own.tier ? `, ${own.tier}` : ", of unknown tier"}; `
      + `mean of all designs: ${show(own.mean, metric(name).unit)}. The swing is the largest mean minus the smallest, relative to that. `
      + "A search that samples some values more often biases the means.";
    grid.replaceChildren(...own.knobs.map((row) => effect(row, metric(name), own)));
  };
  host.append(html("div", { class: "controls" }, choice("metric", found.map((each) => [each.metric, each.metric]), found[0].metric, draw)), said, grid);
  draw(found[0].metric);
}
function effect(row, each, own) {
  const means = row.means.map((mean) => mean.mean);
  const all = own.knobs.flatMap((knob) => knob.means.map((mean) => mean.mean));
  const y = linear([Math.min(0, ...all), Math.max(0, ...all)], [116, 24]);
  const slot = 300 / means.length;
  const words = row.means.map(({ value, mean, count }) => `${value}: ${show(mean, each.unit)} over ${count}`);
  const bars = means.map((mean, n) => svg("path", { d: box(50 + n * slot + 3, Math.min(y(mean), y(0)), Math.max(slot - 6, 2), Math.abs(y(0) - y(mean))), class: "bar" },
    svg("title", {}, words[n])));
  const labels = row.means.map(({ value }, n) => (means.length <= 6 || n % 2 === 0 ? svg("text", { x: 50 + (n + 0.5) * slot, y: 132, "text-anchor": "middle" },
    value.length > slot / 6 ? `${value.slice(0, Math.max(3, Math.floor(slot / 7)))}\u2026` : value) : null));
  return html("figure", { class: "effect" },
    html("figcaption", {}, html("b", {}, row.knob), ` swing ${percent(row.swing, 1)}`),
    svg("svg", { viewBox: "0 0 360 140", class: "picture", role: "img", "aria-label": `${row.knob}: ${words.join("; ")}` },
      leftAxis(y, [50, 24, 350, 116], "", (tick) => show(tick, each.unit)), ...bars, ...labels.filter((text) => text)));
}
