"use strict";
// One hit: its text, its scores, and why it has them.
const LEGS = { dense: "Dense", sparse: "Sparse" };
const SNIPPETS = { fields: ["title", "text"], length: 320 };

// A field's snippet, and whether the field goes on before and after it. What is no text has none, and is cut instead.
function excerpt(hit, name) {
  const value = hit.fields[name];
  if (value === undefined || value === null || value === "") return null;
  const whole = show(value), all = Array.from(whole);
  const part = hit.snippets?.[name] || { text: all.slice(0, SNIPPETS.length).join(""), start: 0, marks: [] };
  return { ...part, whole, cut: part.start > 0, more: part.start + Array.from(part.text).length < all.length };
}

function shorten(element, { text, marks, cut, more }) {
  if (cut) element.append("… ");
  marked(element, text, marks, inLine);
  if (more) element.append(" …");
  return element;
}

// The text of a hit: its snippet, and on demand the whole of it with the same marks.
function textElement(part, name) {
  const box = make("div", "text"), words = make("p");
  shorten(words, part);
  box.append(words);
  if (!part.cut && !part.more) return box;
  const button = makeButton("link", "Whole text", () => {
    const whole = box.classList.toggle("whole");
    words.replaceChildren();
    if (whole) marked(words, part.whole, part.marks.map(([from, to]) => [from + part.start, to + part.start]));
    else shorten(words, part);
    button.firstChild.textContent = whole ? "Shorter" : "Whole text";
  });
  button.append(make("span", "hidden", ` of ${name}`));
  box.append(" ", button);
  return box;
}

// What tokenizers put before a piece: Ġ or ▁ for a space, ## for none.
function piece(token) {
  return token.replace(/^(?:Ġ|▁|##)(?=.)/u, "");
}

function shareCell(leg, share, highest) {
  const cell = make("td"), box = make("div", share ? "share" : "share nothing"), bar = make("span", share < 0 ? "bar below" : "bar");
  bar.setAttribute("aria-hidden", "true");
  fillOf(bar, highest > 0 ? Math.abs(share) / highest : 0, leg);
  box.append(make("b", "", share === null ? "–" : number(share)), ...(share === null ? [] : [bar]));
  cell.append(box);
  return cell;
}

// A mark for what a document has by meaning alone: none of its words is the same.
function byMeaning(element) {
  element.append(make("span", "hidden", ", "), make("span", "meaning", "added by meaning"));
  return element;
}

// What one token or term of a word adds, and what it is.
function part(share, name, said, added = false) {
  const item = make("li"), about = make("span");
  item.append(make("b", "", share === null ? "–" : number(share)), about);
  about.append(make("i", "", piece(name)), said);
  if (added) byMeaning(about);
  return item;
}

const PARTS = {
  dense: ({ tokens }) => tokens.map(({ dense, token, weight }) => part(dense, token, weight === 1 ? "" : ` × ${number(weight)}`)),
  sparse: ({ terms }) => terms.map(({ sparse, text, impact, weight, added }) => (
    part(sparse, text, impact === 0 ? ", not in the document" : weight === 1 ? "" : `, impact ${impact} × ${number(weight)}`, added)
  )),
};
const NO_PARTS = { dense: "The model has no token of it.", sparse: "A stop word or a sign, which the leg leaves out." };

// The row below a word: the tokens of its share of the dense score, the terms of its share of the sparse score.
function partsRow(word, legs) {
  const row = make("tr", "parts"), cell = make("td"), columns = make("div");
  row.hidden = true;
  cell.colSpan = 1 + legs.length;
  columns.append(...legs.map((leg) => {
    const column = make("div"), list = make("ul"), items = PARTS[leg](word);
    list.append(...items);
    column.append(make("h3", `leg ${leg}`, LEGS[leg]), items.length ? list : make("p", "", NO_PARTS[leg]));
    return column;
  }));
  cell.append(columns);
  row.append(cell);
  return row;
}

// A word with its shares. Its tokens and terms unfold below it.
function wordRows(word, legs, highest, id) {
  const body = make("tbody"), row = make("tr"), name = make("th"), parts = partsRow(word, legs);
  const button = makeButton("word", "", () => {
    parts.hidden = !parts.hidden;
    button.setAttribute("aria-expanded", String(!parts.hidden));
  });
  const label = make("span", "", word.word);
  if (word.count > 1) label.append(make("small", "", ` × ${word.count}`));
  if (word.added) byMeaning(label);
  parts.id = id;
  button.setAttribute("aria-expanded", "false");
  button.setAttribute("aria-controls", id);
  button.append(label);
  name.scope = "row";
  name.append(button);
  row.append(name, ...legs.map((leg) => shareCell(leg, PARTS[leg](word).length ? word[leg] : null, highest[leg])));
  body.append(row, parts);
  return body;
}

let tables = 0; // for ids that are alone on the page

// The words that add most come first: by what they add to each leg's score, as the legs count in this hit.
function wordTable(words, legs, fusion) {
  const table = make("table"), head = make("tr"), place = (tables += 1);
  table.append(make("caption", "hidden", "What each word of the query adds to the scores"), make("thead"));
  table.tHead.append(head);
  for (const name of ["Word", ...legs.map((leg) => `Adds to the ${leg} score`)]) {
    const cell = make("th", "", name);
    cell.scope = "col";
    head.append(cell);
  }
  const sum = (leg) => Math.abs(words.reduce((so, word) => so + word[leg], 0)) || 1;
  const highest = Object.fromEntries(legs.map((leg) => [leg, Math.max(...words.map((word) => Math.abs(word[leg])))]));
  const sums = Object.fromEntries(legs.map((leg) => [leg, sum(leg)]));
  const adds = (word) => legs.reduce((so, leg) => so + (Math.abs(fusion[leg]) * word[leg]) / sums[leg], 0);
  const sorted = [...words].sort((a, b) => adds(b) - adds(a));
  table.append(...sorted.map((word, i) => wordRows(word, legs, highest, `parts-${place}-${i}`)));
  return table;
}

function why(hit) {
  const details = make("details", "why"), { fusion, words, coverage } = hit.explanation;
  const legs = Object.keys(LEGS).filter((leg) => fusion[leg] !== null), told = legs.filter((leg) => words.some((word) => word[leg] !== null));
  details.append(make("summary", "", "Why this hit?"));
  if (legs.length > 1) {
    const shares = legs.map((leg) => `${number(fusion[leg])} of the ${leg} leg`);
    if (fusion.feedback) shares.push(`${number(fusion.feedback)} for being like the first hit`);
    details.append(make("p", "", `Score ${number(hit.score)} = ${shares.join(" + ")}`));
  }
  const terms = facts.bundle.vocabulary === "words" ? "words" : "terms";
  if (coverage !== undefined) details.append(make("p", "", `Title and text have ${Math.round(100 * coverage)} % of the query's ${terms}.`));
  if (told.length) details.append(wordTable(words, told, fusion));
  for (const leg of legs.filter((one) => !told.includes(one))) details.append(make("p", "", `The ${leg} score is not divided among the words.`));
  const ask = makeButton("", "All terms of this document", () => showTerms(hit.id, ask));
  details.append(ask);
  return details;
}

async function showTerms(id, button) {
  let terms;
  try {
    ({ terms } = await call(`terms/${encodeURIComponent(id)}`));
  } catch (error) {
    tell(error);
    return;
  }
  const list = make("ul", "terms");
  list.append(...terms.map((term) => {
    const item = make("li", term.in_text ? "" : "added", `${piece(term.text)} ${term.impact}`);
    if (!term.in_text) item.append(make("span", "hidden", ", added by meaning"));
    return item;
  }));
  const added = terms.filter((term) => !term.in_text).length;
  const told = `${terms.length} terms with their impacts` + (added ? `; ${added} of them, in colour, are not in the text: they were added by meaning.` : ".");
  button.replaceWith(make("p", "", told), list);
}

// The score as one bar, made of what each leg adds to it, beside the best hit's; and what each leg says of the hit. The
// bar is only drawn where the best hit is a match at all, and so has `best`.
function scoresElement(hit, best) {
  const scores = make("dl"), bar = make("dd", "bar"), shares = hit.explanation?.fusion || {};
  bar.setAttribute("aria-hidden", "true");
  for (const leg of Object.keys(LEGS)) fillOf(bar, best > 0 ? shares[leg] / best : 0, leg);
  scores.append(make("dt", "", "Score"), make("dd", "", number(hit.score)), ...(best === undefined ? [] : [bar]));
  if (hit.matched) scores.append(make("dt", "", "Match"), make("dd", "", hit.matched));
  for (const [leg, name] of Object.entries(LEGS)) {
    if (leg === "dense" && !hasDense()) continue;
    const found = hit[leg], rank = found?.rank ? `rank ${found.rank}` : "not proposed";
    scores.append(make("dt", `leg ${leg}`, name), make("dd", "", found ? `${rank} · ${number(found.score)}` : "–"));
  }
  return scores;
}

function hitElement(hit, best) {
  const item = make("li", "hit"), left = make("div"), heading = make("h2");
  const { title: _, text: __, ...others } = hit.fields;
  const title = excerpt(hit, "title"), text = excerpt(hit, "text");
  heading.append(make("span", "rank", `${hit.rank} `));
  if (title) shorten(heading, title); else heading.append(hit.id);
  left.append(heading);
  const facts = Object.entries(others).map(([name, value]) => named(name, value));
  const more = hit.group?.candidates - 1, same = hit.group?.value === hit.fields.text ? "with the same text" : "of this file";
  if (more > 0) facts.unshift(`${more} more ${same} among the candidates`);
  if (title && title.whole !== hit.id) facts.unshift(hit.id);
  if (facts.length) left.append(make("div", "facts", facts.join(" · ").slice(0, 200)));
  if (text) left.append(textElement(text, title ? title.text : hit.id));
  const alike = makeButton("link", "More like this", () => searchLike(hit.id));
  alike.append(make("span", "hidden", `: ${title ? title.text : hit.id}`));
  left.append(alike);
  item.dataset.id = hit.id;
  item.tabIndex = -1;
  item.append(left, ...(hit.dense || hit.sparse ? [scoresElement(hit, best)] : []));
  if (hit.explanation) item.append(why(hit));
  return item;
}
