// A table with sorting, filters and keyboard navigation.

const SHOWN = 400; // rows made at once: a browser lays out thousands slowly

// columns: {name, value(index), text(index), right, total(indices)}; filters: {name, value(index)}, each a list to choose from.
function table(host, { label, count, columns, filters, order }) {
  const state = { by: -1, down: false, words: "", chosen: filters.map(() => ""), all: false, rows: [] };
  const body = html("tbody");
  const foot = html("tfoot");
  const said = html("p", { class: "note", role: "status" });
  const more = button("", () => { state.all = true; fill(); }, { class: "more" });
  const heads = columns.map((column, at) => html("th", { scope: "col", "aria-sort": "none", class: column.right ? "right" : "" },
    button(column.name, () => sort(at), { class: "sort" })));
  const search = html("input", { type: "search", "aria-label": `Filter ${label}`, placeholder: "filter: words, all must match",
    oninput: () => { state.words = search.value.toLowerCase(); fill(); } });
  host.append(
    html("div", { class: "controls" }, search, ...filters.map((filter, at) => choice(filter.name, options(filter), "", (value) => {
      state.chosen[at] = value;
      fill();
    }))),
    said,
    html("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
      html("table", { class: "rows" }, html("thead", {}, html("tr", {}, ...heads)), body, foot)),
    more, html("p", { class: "keys" }, "Keys on a row: \u2191 \u2193 move the selection, Home and End jump."));

  function options(filter) {
    const values = [...new Set(indices(count).map(filter.value))].sort();
    return [["", "all"], ...values.map((value) => [value, value || "none"])];
  }
  function sort(at) {
    state.down = state.by === at ? !state.down : Boolean(columns[at].right);
    state.by = at;
    heads.forEach((head, n) => head.setAttribute("aria-sort", n !== at ? "none" : state.down ? "descending" : "ascending"));
    fill();
  }
  function wanted(index) {
    if (!filters.every((filter, at) => !state.chosen[at] || filter.value(index) === state.chosen[at])) return false;
    const text = columns.map((column) => column.text(index)).join(" ").toLowerCase();
    return state.words.split(" ").every((word) => text.includes(word)) && (!host.only || host.only(index));
  }
  function sorted() {
    const found = (order || indices(count)).filter(wanted);
    if (state.by < 0) return found;
    const { value } = columns[state.by];
    return found.sort((a, b) => compare(value(a), value(b), state.down) || a - b);
  }
  function row(index) {
    const cells = columns.map((column, at) => html(at === 0 ? "th" : "td",
      { scope: at === 0 ? "row" : null, class: column.right ? "right" : "" }, column.text(index)));
    return html("tr", { "data-index": index, tabindex: -1, "aria-selected": "false" }, ...cells);
  }
  function fill() {
    const found = sorted();
    state.rows = state.all ? found : found.slice(0, SHOWN);
    body.replaceChildren(...state.rows.map(row));
    said.textContent = `${found.length} of ${count} shown`;
    more.textContent = `show the other ${found.length - state.rows.length}`;
    more.hidden = state.rows.length === found.length;
    totals(found);
    mark(selection.index);
  }
  // The totals of the rows that pass the filters.
  function totals(found) {
    if (!columns.some((column) => column.total)) return;
    foot.replaceChildren(html("tr", {}, ...columns.map((column, at) => html("td", { class: column.right ? "right" : "" },
      column.total ? column.total(found) : at ? "" : "total"))));
  }
  function mark(index) {
    for (const each of body.querySelectorAll("[aria-selected=true]")) each.setAttribute("aria-selected", "false");
    for (const each of body.querySelectorAll("[tabindex='0']")) each.tabIndex = -1;
    const at = state.rows.indexOf(index);
    const own = body.children[Math.max(0, at)];
    if (!own) return;
    own.tabIndex = 0;
    if (at < 0) return;
    own.setAttribute("aria-selected", "true");
    const frame = body.closest(".scroll");
    const [top, height] = [own.offsetTop - 30, own.offsetHeight + 30];
    if (top < frame.scrollTop) frame.scrollTop = top;
    else if (top + height > frame.scrollTop + frame.clientHeight) frame.scrollTop = top + height - frame.clientHeight;
  }
  function go(at) {
    const to = clamp(at, 0, state.rows.length - 1);
    if (!state.rows.length) return;
    selection.set(state.rows[to]);
    body.children[to].focus({ preventScroll: true });
  }
  const here = () => state.rows.indexOf(Number((document.activeElement.closest("tr") || { dataset: {} }).dataset.index));
  body.addEventListener("click", (event) => {
    const own = event.target.closest("tr");
    if (own) go(state.rows.indexOf(Number(own.dataset.index)));
  });
  onKeys(body, { ArrowDown: () => go(here() + 1), ArrowUp: () => go(here() - 1), Home: () => go(0), End: () => go(state.rows.length - 1),
    Enter: () => go(here()), " ": () => go(here()) });
  selection.watch(mark);
  fill();
  return { fill };
}
function compare(a, b, down) {
  // Unknown values are last in either order.
  if (a === null || b === null) return (a === null) - (b === null);
  const order = typeof a === "number" ? a - b : a < b ? -1 : a > b ? 1 : 0;
  return down ? -order : order;
}
