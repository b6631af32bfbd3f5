"use strict";
// The search as it is typed, its pages, and its address.
const HITS = 10, MEANT = 5, PAUSE_MS = 40;
const query = byId("query"), hits = byId("hits"), radios = [...document.querySelectorAll("input[name=mode]")];
let facts = null, stale = true; // what /info says, and whether it is to be asked again
let running = null; // ends the requests of a search when another one begins
let asked = null; // the searches that make the page
let timer = 0;
let settled = true; // whether the address is of a search that was finished, so that the next one gets an entry in the history

function chosenMode() {
  return hasDense() ? radios.find((radio) => radio.checked).value : "hybrid";
}

// Without a dense leg, all modes are the same, so there is nothing to choose.
function hasDense() {
  return !facts || facts.modes.includes("dense");
}

function showMode() {
  const listed = !isRanked(); // no leg is searched, so there is nothing to choose
  const useful = hasDense() && !(listed && isFiltered());
  byId("modes").hidden = !useful;
  return listed ? "hybrid" : chosenMode();
}

// The address has the whole search. In its fragment, which no server and no log sees; a link may have `?q=` in its place.
function remember(entry) {
  const address = new URLSearchParams({ q: query.value, mode: chosenMode() });
  writeFilters(address);
  const next = location.pathname + (hasSearch() ? `#${address}` : "");
  if (next === location.pathname + location.search + location.hash) return;
  // Browsers refuse very long addresses, and too many changes in a row; the search matters more.
  try {
    if (entry) history.pushState(null, "", next); else history.replaceState(null, "", next);
  } catch (error) {
    console.debug("the address was not changed", error);
  }
}

function restore() {
  const address = new URLSearchParams(location.hash.slice(1) || location.search);
  query.value = address.get("q") || "";
  (radios.find((radio) => radio.value === address.get("mode")) || radios[0]).checked = true;
  readFilters(address);
  settled = true;
  search(false);
}

// Asks what is served; again after a search was refused, since another bundle may be there.
async function learn() {
  facts = await call("info");
  stale = false;
  const { bundle, filters } = facts;
  buildFilters(filters);
  showMode();
  byId("about").textContent = `${count(bundle.documents)} documents of ${bundle.corpus}` +
    (!hasDense() ? "." : `, encoded by ${bundle.model}${bundle.trained ? "." : " (not trained for retrieval)."}`) +
    (facts.rerank_top ? " A model reranks the first hits." : " No model in the query path.");
  showExamples(facts.examples || []);
  showCollections(facts.collections || []);
}

function showExamples(examples) {
  const links = examples.map((example) => makeLink(`#${new URLSearchParams({ q: example })}`, example));
  byId("examples").replaceChildren(" Try: ", ...listed(links));
  byId("examples").hidden = !links.length;
}

// The pages of the other collections stand beside this one, below "collections".
function showCollections(names) {
  const here = /\/collections\/([^/]+)\/$/.exec(location.pathname)?.[1];
  const links = names.map((name) => {
    const link = makeLink(here === undefined ? `collections/${name}/` : `../${name}/`, name);
    if (name === (here === undefined ? names[0] : decodeURIComponent(here))) link.setAttribute("aria-current", "page");
    return link;
  });
  byId("collections").replaceChildren(...links);
  byId("collections").hidden = !links.length;
}

// A text ranks the hits.
function isRanked() {
  return Boolean(query.value.trim());
}

// With an empty box, filters list what matches them.
function hasSearch() {
  return isRanked() || isFiltered();
}

// The searches that make the page: its hits; then one for each field with chosen values, whose counts are those without
// its own condition: what another value would bring. While someone types, the last word is not finished. Passages of
// files, as `lightretriever corpus` makes them, are shown file by file.
function searches(mode) {
  const text = query.value.toWellFormed?.() ?? query.value, facets = facetNames();
  const typing = facts.spelling && { spelling: "suggest", ...(!settled && { prefix: true }) };
  const ranked = isRanked();
  const grouped = ranked && facts.fields.includes("path") && { group_by: "path" };
  const asked = { ...(ranked && { query: text, ...typing }), mode, ...filterOf(conditions()) };
  const main = { ...asked, explain: ranked, snippets: SNIPPETS, ...grouped, ...(facets.length && { facets }) };
  const { filter: _, ...unfiltered } = asked;
  const others = (field) => [...conditions(field), ...(ranked ? [] : [{ field, exists: true }])]; // something to list
  const counting = facets.filter((field) => chosen.has(field)).slice(0, facts.limits.max_batch - 1).map((field) => (
    { ...unfiltered, ...filterOf(others(field)), k: 1, fields: [], facets: [field] }
  ));
  return { main, counting };
}

// With a `number`, shows as many hits of the search that is shown.
async function search(entry, number) {
  clearTimeout(timer);
  timer = 0;
  running?.abort();
  remember(entry);
  const { signal } = running = new AbortController();
  showMode();
  document.body.classList.toggle("busy", hasSearch());
  document.body.classList.toggle("asked", hasSearch());
  if (!hasSearch()) { showFilters({}); clear(); byId("welcome").hidden = false; }
  try {
    if (stale) await learn();
    signal.throwIfAborted();
    if (!hasSearch()) return;
    if (number === undefined) asked = searches(showMode());
    const most = facts.limits[isRanked() ? "candidates" : "max_candidates"], { counting } = asked;
    const main = { ...asked.main, k: Math.min(number ?? HITS, most) }, all = [main, ...counting];
    const [answer, ...counted] = all.length > 1 ? (await call("search/batch", { searches: all }, signal)).results : [await call("search", main, signal)];
    byId("access").hidden = true;
    clear(true);
    showHits(main, answer, most);
    const counts = { ...answer.facets };
    counting.forEach(({ facets: [field] }, i) => { counts[field] = counted[i].facets[field]; });
    byId("counted").textContent = `Counted among ${isRanked() ? "the candidates of this search" : "all documents that are listed"}.`;
    showFilters(counts);
  } catch (error) {
    if (signal.aborted) return;
    if (error.refused) stale = true;
    if (!hasSearch() && error instanceof Trouble) return; // nobody has asked for anything
    clear(true);
    byId("again").hidden = !error.again;
    tell(error);
  } finally {
    if (running.signal === signal) document.body.classList.remove("busy");
  }
}

function clear(panel = false) {
  hits.replaceChildren();
  for (const id of ["counted", "meant", "more", "again", "welcome"]) byId(id).hidden = true;
  showPanel(panel);
  say("");
}

function missing(degraded) {
  const names = degraded.map((one) => (one === "rerank" ? "reranking model" : `${one} leg`));
  return names.length ? ` Without the ${names.join(" and the ")}, which did not answer.` : "";
}

// What an unfinished word may become, the query in a better spelling, what a rule added, and what operators did.
function showMeant({ completions = [], searched, did_you_mean: meant, rules, excluded = [], phrases = {} }) {
  const found = completions.slice(0, MEANT), parts = found.length ? ["Searched for ", ...listed(found.map(queryLink)), ". "]
    : searched === undefined ? [] : [`Searched for “${searched}”. `];
  if (meant !== undefined) parts.push("Did you mean ", queryLink(meant), "? ");
  const quoted = (texts) => texts.map((text) => `“${text}”`).join(", "), loose = Object.keys(phrases).filter((phrase) => !phrases[phrase]);
  if (rules?.synonyms?.length) parts.push(`Also searched for ${quoted(rules.synonyms.map(({ text }) => text))}. `);
  if (excluded.length) parts.push(`Without documents that have ${quoted(excluded)}. `);
  if (loose.length) parts.push(`Documents need not have the phrase ${quoted(loose)}. `);
  byId("meant").replaceChildren(...parts);
  byId("meant").hidden = !parts.length;
}

function queryLink(text) {
  const address = new URLSearchParams(location.hash.slice(1)); // mode and filters stay
  address.set("q", text);
  return makeLink(`#${address}`, text);
}

function listed(links) {
  return links.flatMap((link, i) => (i ? [" · ", link] : [link]));
}

// The hits of a search, of which `most` can be asked for.
function showHits({ k, group_by: grouped }, answer, most) {
  // A rare word or a code says little by its meaning; a document that has all words of the query is a match.
  const matches = answer.matched !== "none" || answer.hits.some((hit) => hit.explanation?.coverage === 1);
  const best = matches ? answer.hits[0]?.score : undefined, number = answer.hits.length, lost = missing(answer.degraded);
  showMeant(answer);
  hits.append(...answer.hits.map((hit) => hitElement(hit, best)));
  const unit = grouped ? "files in" : "of", kind = answer.total === undefined ? "candidates, ranked" : "documents, listed";
  const weak = best === undefined ? "No document matches well; these are the nearest. " : "";
  const told = `${weak}${count(number)} ${unit} ${count(answer.candidates)} ${kind} in ${answer.timings_ms.total.toFixed(1)} ms.`;
  const nothing = isFiltered() ? "Nothing found with these filters." : "Nothing found.";
  say((number ? told : nothing) + lost, Boolean(lost));
  byId("more").hidden = number < k || k >= Math.min(answer.candidates, most);
}

async function more() {
  const before = hits.children.length;
  await search(false, before + HITS);
  hits.children[before]?.focus({ preventScroll: true });
}

// While someone types, the address changes in place; a finished search stays in the history.
function soon() {
  clearTimeout(timer);
  timer = setTimeout(typed, PAUSE_MS);
}

function typed() {
  const entry = settled;
  settled = false;
  search(entry);
}

function settle() {
  if (timer) typed();
  settled = true;
}

function atOnce() {
  settled = true;
  search(true);
}

byId("form").addEventListener("submit", (event) => { event.preventDefault(); settle(); search(false); });
byId("access").addEventListener("submit", (event) => {
  event.preventDefault();
  // A header takes printable ASCII alone, and so are the keys.
  sessionStorage.setItem(KEY, byId("key").value.replace(/[^!-~]/g, ""));
  byId("key").value = "";
  search(false);
});
byId("again").addEventListener("click", () => search(false));
byId("more").addEventListener("click", more);
query.addEventListener("input", soon);
query.addEventListener("change", settle);
for (const radio of radios) radio.addEventListener("change", atOnce);
addEventListener("hashchange", restore);
if (location.hash || location.search) restore(); else search(false);
