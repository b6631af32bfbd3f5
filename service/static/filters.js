"use strict";
// Filters by declared fields: values of keyword fields to choose from, with their counts; bounds of numbers and dates.
const MOST_VALUES = 100, MOST_FACETS = 20;
const chosen = new Map(), bounds = new Map(); // by field: the values chosen; the bounds { from, to } as typed
const groups = new Map(); // by field: its part of the panel
let declared = {}; // by field: its kind, as /info says

function isFiltered() {
  return chosen.size + bounds.size > 0;
}

// The conditions, one for each field; several values of a field are alternatives.
function conditions(without) {
  const values = [...chosen].filter(([field]) => field !== without).map(([field, all]) => ({ field, in: [...all] }));
  const ranges = [...bounds].map(([field, { from, to }]) => ({
    field,
    ...(from && { gte: bound(field, from) }),
    ...(to && { lte: bound(field, to) }),
  }));
  return [...values, ...ranges];
}

function filterOf(all) {
  return all.length ? { filter: { and: all } } : {};
}

// A bound as the service wants it. What a link has in place of a number is sent as it is: the service says what is wrong.
function bound(field, text) {
  return declared[field] === "date" || isNaN(text) ? text : Number(text);
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
    const values = make("div", "values"), inputs = {}, group = make("fieldset", "", make("legend", "", label(field)), values);
    if (kind !== "keyword") for (const end of ["from", "to"]) inputs[end] = boundInput(values, field, kind, end);
    group.hidden = kind === "keyword"; // until there are values
    groups.set(field, { group, values, inputs });
  }
  byId("fields").replaceChildren(...[...groups.values()].map(({ group }) => group));
  writeInputs();
}

function boundInput(place, field, kind, end) {
  const input = Object.assign(make("input"), { type: kind, ...(kind === "number" ? { step: "any" } : { max: "9999-12-31" }) });
  input.addEventListener("change", () => { setBound(field, end, input.value); atOnce(); });
  place.append(make("label", `bound ${kind}`, end, input));
  return input;
}

// Shows the values with their counts: those chosen in any case.
function showFilters(counts) {
  const focused = document.activeElement?.dataset.of;
  for (const [field, { group, values }] of groups) {
    if (declared[field] !== "keyword") continue;
    const found = new Map((counts[field] || []).map(({ value, count: times }) => [value, times]));
    for (const value of chosen.get(field) || []) if (!found.has(value)) found.set(value, 0);
    const shown = [...found].filter(([value], i) => i < MOST_VALUES || chosen.get(field)?.has(value));
    values.replaceChildren(...shown.map(([value, times]) => valueElement(field, value, times)));
    group.hidden = shown.length === 0;
  }
  if (focused) document.querySelector(`[data-of="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  byId("counted").hidden = facetNames().every((field) => groups.get(field).group.hidden);
  showPanel(true);
}

// Without anything to filter by there is no panel, but what a link asks for can be taken back.
function showPanel(wanted) {
  const number = conditions().length, useful = [...groups.values()].some(({ group }) => !group.hidden);
  const needed = (wanted && useful) || number > 0;
  byId("filters").hidden = !needed;
  byId("unfiltered").hidden = number === 0;
  byId("filters").querySelector("summary").textContent = number ? `Filters (${number})` : "Filters";
  document.body.classList.toggle("filterable", needed);
}

function valueElement(field, value, times) {
  const box = Object.assign(make("input"), { type: "checkbox", checked: Boolean(chosen.get(field)?.has(value)) });
  box.dataset.of = JSON.stringify([field, value]);
  box.addEventListener("change", () => { choose(field, value, box.checked); atOnce(); });
  const amount = make("span", "count", count(times), hidden(" documents"));
  return make("label", times ? "value" : "value none", box, make("span", "name", value || "(empty)"), " ", amount);
}

byId("filters").open = matchMedia("(min-width: 58rem)").matches;
byId("unfiltered").addEventListener("click", () => {
  chosen.clear();
  bounds.clear();
  writeInputs();
  atOnce();
  byId("query").focus();
});
