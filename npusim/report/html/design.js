// The selected design: its figures with their tier, its knobs, and its description.

function designPanel(host) {
  const panel = html("div", { class: "panel", "aria-live": "polite" });
  const nothing = () => html("p", { class: "note" }, "None. Click a point, the end of a line or a row, or use the arrow keys on the Pareto front.");
  host.append(panel);
  const fact = ([name, ...value]) => html("div", {}, html("dt", {}, name), html("dd", {}, ...value));
  selection.watch((index) => {
    if (index < 0) panel.replaceChildren(nothing());
    else panel.replaceChildren(html("h3", {}, `Design ${DATA.ids[index]}`), html("p", { class: "note" }, designState(index)),
      ...(decoded(DATA.bound, index) ? [html("p", { class: "note" }, `Bound by ${decoded(DATA.bound, index)}.`)] : []),
      html("dl", { class: "facts" }, ...METRICS.map((each) => [each.name, `${told(each, index)}${tierWords(each, index)}`]).map(fact)),
      html("dl", { class: "facts" }, ...KNOBS.map((knob) => [knob.name, level(knob, index)]).map(fact)), ...description(index));
  });
  panel.append(nothing());
}
function designState(index) {
  if (!DATA.feasible[index]) return `Not feasible: ${decoded(DATA.reasons, index) || "no reason given"}.`;
  return FRONT.has(index) ? "On the Pareto front: no other design dominates it." : "Dominated: another design is at least as good in every objective and better in one.";
}
const tierWords = (each, index) => (figure(each, index) === null ? "" : ` ${tierMark(tierOf(each, index))} ${tierOf(each, index) || "tier unknown"}`);

function configText(index) {
  const { lines, base, rows } = DATA.configs;
  const row = rows[index];
  if (!row) return null;
  const own = row.n ? [...row.n] : [...base];
  for (let n = 0; row.d && n < row.d.length; n += 2) own[row.d[n]] = row.d[n + 1];
  return own.map((line) => lines[line]).join("\n");
}
function description(index) {
  const text = configText(index);
  if (text === null) return [html("p", { class: "note" }, "The study kept no description of this design.")];
  const shown = html("pre", { tabindex: 0, "aria-label": "description as TOML" }, text);
  const done = html("span", { role: "status", class: "note" });
  const copy = button("copy", async () => {
    done.textContent = (await copied(text, shown)) ? "copied" : "not copied: select the text and copy it";
  });
  return [html("details", {}, html("summary", {}, "description (TOML)"), html("div", { class: "controls" }, copy, done), shown)];
}
// Browsers that deny a local file the clipboard still copy the selection.
async function copied(text, shown) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    getSelection().selectAllChildren(shown);
    return document.execCommand("copy");
  }
}
