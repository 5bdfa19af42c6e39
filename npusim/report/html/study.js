// The designs of a study: columns, the Pareto front, and the designs that pass the filters.

const DESIGNS = DATA.ids.length;
const METRICS = DATA.metrics;
const KNOBS = DATA.knobs;
const FRONT = new Set(DATA.front);
const metric = (name) => METRICS.find((each) => each.name === name) || METRICS[0];
const tierOf = (each, index) => decoded(each.tiers, index);
const figure = (each, index) => each.figures[index];
const told = (each, index) => show(figure(each, index), each.unit);
const level = (knob, index) => (knob.rows[index] < 0 ? "-" : knob.levels[knob.rows[index]]);
const TIER_MARKS = { simulated: "\u25c6", estimated: "\u25cb" };
const tierMark = (tier) => TIER_MARKS[tier] || "?";

// Several pictures filter the designs; a change of the filters redraws all of them.
const filters = {
  kept: () => true,
  watchers: [],
  changed() {
    for (const watcher of this.watchers) watcher();
  },
};
function designLines(index, shown) {
  const state = FRONT.has(index) ? "on the Pareto front" : DATA.feasible[index] ? "dominated" : `not feasible: ${decoded(DATA.reasons, index)}`;
  return [`design ${DATA.ids[index]}, ${state}`, ...shown.map((each) => `${each.name} ${told(each, index)} (${tierOf(each, index) || "tier unknown"})`),
    ...KNOBS.filter((knob) => knob.levels.length > 1).map((knob) => `${knob.name} = ${level(knob, index)}`)];
}
