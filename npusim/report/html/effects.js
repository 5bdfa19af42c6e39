// The effect of each knob on a metric from matched pairs, one small picture per knob, most important first.

const change = (share) => `${share > 0 ? "+" : share < 0 ? "\u2212" : ""}${percent(Math.abs(share), 1)}`;

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
    said.textContent = `Changes of ${name} between designs that differ in one knob alone, of ${own.count} designs`
      + `${own.tier ? `, ${own.tier}` : ", of unknown tier"}. Bar: mean ratio of the pairs. Line: their range.`;
    grid.replaceChildren(...own.knobs.map(effect));
  };
  host.append(html("div", { class: "controls" }, choice("metric", found.map((each) => [each.metric, each.metric]), found[0].metric, draw)), said, grid);
  draw(found[0].metric);
}
function effect(row) {
  const caption = html("figcaption", {}, html("b", {}, row.knob), ` typical range ${percent(row.importance, 1)}`);
  if (!row.steps.length) return html("figure", { class: "effect" }, caption, html("p", { class: "note" }, "No two designs differ in this knob alone."));
  const ends = row.steps.flatMap((step) => step.slice(3, 5));
  const x = linear([Math.min(0, ...ends), Math.max(0, ...ends) || 1e-9], [4, 386]);
  const words = row.steps.map(([from, to, mean, low, high, pairs]) =>
    `${from} \u2192 ${to}: ${change(mean)} (${change(low).replace(" %", "")} to ${change(high)}), ${pairs} ${pairs === 1 ? "pair" : "pairs"}`);
  const parts = row.steps.flatMap(([, , mean, low, high], n) => [
    svg("text", { x: 4, y: 14 + n * 34 }, words[n].length > 55 ? `${words[n].slice(0, 54)}\u2026` : words[n], svg("title", {}, words[n])),
    svg("path", { d: box(Math.min(x(mean), x(0)), 19 + n * 34, Math.max(Math.abs(x(mean) - x(0)), 1), 8), class: "bar" }),
    svg("path", { d: `M${near(x(low))} ${23 + n * 34}H${near(x(high))}`, class: "axis" }),
  ]);
  const height = 34 * row.steps.length;
  const zero = svg("path", { d: `M${near(x(0))} 0V${height}`, class: "axis" });
  const notes = [row.depends_on ? `Its effect depends on ${row.depends_on}, typically by ${percent(row.dependence, 1)}.` : "",
    row.more ? `${row.more} more steps have fewer pairs.` : ""].filter((text) => text);
  return html("figure", { class: "effect" }, caption,
    svg("svg", { viewBox: `0 0 400 ${height}`, class: "picture", role: "img", "aria-label": `${row.knob}: ${words.join("; ")}` }, zero, ...parts),
    ...notes.map((text) => html("p", { class: "note" }, text)));
}
