// The page of a study.

function designTable(host) {
  const knobs = KNOBS.map((knob) => ({ name: knob.name, value: (index) => (knob.rows[index] < 0 ? null : knob.rows[index]), text: (index) => level(knob, index) }));
  const metrics = METRICS.map((each) => ({ name: each.name, value: (index) => figure(each, index), right: true,
    text: (index) => `${told(each, index)}${figure(each, index) === null ? "" : ` ${tierMark(tierOf(each, index))}`}` }));
  const state = (index) => (FRONT.has(index) ? "front" : DATA.feasible[index] ? "dominated" : "not feasible");
  const rest = indices(DESIGNS).filter((index) => !FRONT.has(index));
  host.only = (index) => filters.kept(index);
  host.append(html("p", { class: "note" }, `${TIER_MARKS.estimated} estimated, ${TIER_MARKS.simulated} simulated, ? unknown tier`));
  const { fill } = table(host, {
    label: "designs",
    count: DESIGNS,
    columns: [{ name: "design", value: (index) => index, text: (index) => DATA.ids[index] }, { name: "state", value: state, text: state }, ...knobs, ...metrics,
      { name: "reason", value: (index) => decoded(DATA.reasons, index), text: (index) => decoded(DATA.reasons, index) }],
    filters: [{ name: "state", value: state }],
    order: [...DATA.front, ...rest],
  });
  filters.watchers.push(fill);
}

start(() => {
  if (!DESIGNS) {
    byId("scatter").append(html("p", { class: "note" }, "The study has no designs."));
    return;
  }
  scatter(byId("scatter"));
  designPanel(byId("design"));
  parallel(byId("parallel"));
  effects(byId("effects"));
  designTable(byId("table"));
  selection.set(DATA.best);
});
