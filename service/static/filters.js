"use strict";
// Filters by declared fields: values of keyword fields to choose from, with their counts; bounds of numbers and dates.
const FEW_VALUES = 8, MOST_FACETS = 20;
const chosen = new Map(), bounds = new Map(); // by field: the values chosen; the bounds { from, to } as typed
const groups = new Map(), unfolded = new Set(); // by field: its part of the panel; fields of which all values are shown
let declared = {}; // by field: its kind, as /info says
let filtersChanged = () => {}; // set by the page: called with true while someone types

function isFiltered() {
  return chosen.size + bounds.size > 0;
}

// The conditions, one for each field; several values of a field are alternatives.
function conditions(without) {
  const values = [...chosen].filter(([field]) => field !== without).map(([field, all]) => ({ field, in: [...all] }));
  const ranges = [...bounds].map(([field, { from, to }]) => ({
    field,
    ...(from && { gte: bound(field, from) }),
    ...(to && { lte: bound(field, to, "T23:59:59.999Z") }),
  }));
  return [...values, ...ranges];
}

// A condition that every document meets: without a query, the service lists what a filter lets through.
function everything() {
  const [field] = Object.keys(declared);
  return field === undefined ? [] : [{ or: [{ field, exists: true }, { field, exists: false }] }];
}

function filterOf(all) {
  return all.length ? { filter: { and: all } } : {};
}

// A bound as the service wants it. What is no number is sent as it is: the service says what is wrong with it. A day as
// the upper bound means all of that day.
function bound(field, text, endOfDay = "") {
  if (declared[field] === "date") return /T/.test(text) ? text : text + endOfDay;
  return text.trim() && Number.isFinite(Number(text)) ? Number(text) : text;
}

function facetNames() {
  return Object.keys(declared).filter((field) => declared[field] === "keyword").slice(0, MOST_FACETS);
}

function writeFilters(address) {
  for (const [field, values] of chosen) for (const value of values) address.append(`is.${field}`, value);
  for (const [field, ends] of bounds) {
    for (const end of ["from", "to"]) if (ends[end]) address.append(`${end}.${field}`, ends[end]);
  }
}

function readFilters(address) {
  chosen.clear();
  bounds.clear();
  for (const [name, value] of address) {
    const [, what, field] = /^(is|from|to)\.(.+)$/s.exec(name) || [];
    if (what === "is") choose(field, value, true);
    else if (what) setBound(field, what, value);
  }
  writeInputs();
}

function choose(field, value, on) {
  const values = chosen.get(field) || new Set();
  if (on) values.add(value); else values.delete(value);
  if (values.size) chosen.set(field, values); else chosen.delete(field);
}

function setBound(field, end, text) {
  const ends = { from: "", to: "", ...bounds.get(field), [end]: text };
  if (ends.from || ends.to) bounds.set(field, ends); else bounds.delete(field);
}

function writeInputs() {
  for (const [field, { inputs }] of groups) {
    for (const [end, input] of Object.entries(inputs)) input.value = bounds.get(field)?.[end] || "";
  }
}

function buildFilters(fields) {
  if (JSON.stringify(fields) === JSON.stringify(declared)) return;
  declared = fields;
  groups.clear();
  const facets = facetNames();
  for (const [field, kind] of Object.entries(fields)) {
    if (kind === "keyword" && !facets.includes(field)) continue;
    const values = make("div", "values"), inputs = {}, group = make("fieldset", "", make("legend", "", labelled(field).label), values);
    if (kind !== "keyword") for (const end of ["from", "to"]) inputs[end] = boundInput(values, field, kind, end);
    group.hidden = kind === "keyword"; // until there are values
    groups.set(field, { group, values, inputs, seen: [] });
  }
  byId("fields").replaceChildren(...[...groups.values()].map(({ group }) => group));
  writeInputs();
}

function boundInput(place, field, kind, end) {
  const input = Object.assign(make("input"), { type: kind === "date" ? "date" : "text" });
  if (kind === "number") Object.assign(input, { inputMode: "decimal", autocomplete: "off", size: 4 });
  input.addEventListener("input", () => { setBound(field, end, input.value); filtersChanged(true); });
  input.addEventListener("change", () => filtersChanged(false));
  place.append(make("label", `bound ${kind}`, end, input));
  return input;
}

// Shows the values with their counts: those chosen in any case, and where nothing is found, those seen last.
function showFilters(counts) {
  const focused = document.activeElement?.dataset.of;
  for (const [field, part] of groups) {
    if (declared[field] !== "keyword") continue;
    const { group, values } = part, found = new Map((counts[field] || []).map(({ value, count: times }) => [value, times]));
    if (found.size) part.seen = [...found.keys()]; else for (const value of part.seen) found.set(value, 0);
    for (const value of chosen.get(field) || []) if (!found.has(value)) found.set(value, 0);
    const all = [...found], few = all.filter(([value], i) => i < FEW_VALUES || chosen.get(field)?.has(value));
    const shown = unfolded.has(field) ? all : few;
    values.replaceChildren(...shown.map(([value, times]) => valueElement(field, value, times)));
    if (few.length < all.length) values.append(foldButton(field, all.length, counts));
    group.hidden = all.length === 0;
  }
  if (focused) document.querySelector(`[data-of="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  byId("counted").hidden = facetNames().every((field) => groups.get(field).group.hidden);
  showPanel(true);
}

// Without anything to filter by there is no panel, but what a link asks for can be taken back.
function showPanel(wanted) {
  const number = conditions().length, useful = [...groups.values()].some(({ group }) => !group.hidden);
  const needed = (wanted && useful) || number > 0;
  byId("filters").hidden = byId("unfold").hidden = !needed;
  byId("unfiltered").hidden = number === 0;
  byId("unfold").textContent = number ? `Filters (${number})` : "Filters";
  document.body.classList.toggle("filterable", needed);
}

function valueElement(field, value, times) {
  const box = Object.assign(make("input"), { type: "checkbox", checked: Boolean(chosen.get(field)?.has(value)) });
  box.dataset.of = JSON.stringify([field, value]);
  box.addEventListener("change", () => { choose(field, value, box.checked); filtersChanged(false); });
  const amount = make("span", "count", count(times), hidden(" documents"));
  return make("label", times ? "value" : "value none", box, make("span", "name", value || "(empty)"), " ", amount);
}

function foldButton(field, all, counts) {
  const open = unfolded.has(field), button = makeButton("link", () => {
    if (open) unfolded.delete(field); else unfolded.add(field);
    showFilters(counts);
  }, open ? "Fewer values" : `All ${count(all)} values`);
  button.dataset.of = JSON.stringify([field]);
  return button;
}

// What is wrong with a bound, in words: the service names the condition by its place.
function boundTrouble(errors) {
  for (const { group, inputs } of groups.values()) {
    for (const input of Object.values(inputs)) input.removeAttribute("aria-invalid");
  }
  for (const { field: path, message } of errors) {
    const [, place, end] = /^(?:searches\.0\.)?filter\.and\.(\d+)\.(gte|lte)$/.exec(path) || [];
    const field = conditions()[place]?.field, name = end === "gte" ? "from" : "to";
    if (!field) continue;
    groups.get(field)?.inputs[name]?.setAttribute("aria-invalid", "true");
    return `${field}, ${name}: ${message}.`;
  }
  return "";
}

byId("unfold").addEventListener("click", () => {
  const open = byId("filters").classList.toggle("open");
  byId("unfold").setAttribute("aria-expanded", String(open));
});
byId("unfiltered").addEventListener("click", () => {
  chosen.clear();
  bounds.clear();
  writeInputs();
  filtersChanged(false);
  byId("query").focus();
});
