"use strict";
// One hit: its text, its scores, and why it has them.
const LEGS = { dense: "Dense", sparse: "Sparse", bm25: "BM25" };
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
  const cell = make("td"), box = make("div", "share"), bar = make("span", share < 0 ? "bar below" : "bar");
  if (share === null) { cell.textContent = "–"; return cell; }
  bar.setAttribute("aria-hidden", "true");
  fillOf(bar, highest > 0 ? Math.abs(share) / highest : 0, leg);
  box.append(make("b", "", number(share)), bar);
  cell.append(box);
  return cell;
}

// The page sends no weighted terms, so a token counts as often as it occurs.
function tokenTable(tokens, legs) {
  const table = make("table"), head = make("tr"), body = make("tbody");
  table.append(make("caption", "hidden", "What each token of the query adds to the scores"), make("thead"), body);
  table.tHead.append(head);
  for (const name of ["Token", ...legs.map((leg) => `Adds to the ${leg} score`)]) {
    const cell = make("th", "", name);
    cell.scope = "col";
    head.append(cell);
  }
  const highest = (leg) => Math.max(...tokens.map((token) => Math.abs(token[leg] || 0)));
  const order = (a, b) => (b.sparse || 0) - (a.sparse || 0) || (b.dense || 0) - (a.dense || 0);
  for (const token of [...tokens].sort(order)) {
    const row = make("tr"), name = make("th", "", piece(token.token) + (token.count > 1 ? ` × ${token.count}` : ""));
    if (token.leg) name.append(make("small", "", ` ${token.leg}`)); // its id is one of that leg's tokenizer
    name.scope = "row";
    row.append(name, ...legs.map((leg) => shareCell(leg, token[leg], highest(leg))));
    body.append(row);
  }
  return table;
}

function why(hit) {
  const details = make("details", "why"), { fusion, tokens } = hit.explanation;
  const legs = Object.keys(fusion).filter((leg) => fusion[leg] !== null);
  details.append(make("summary", "", "Why this hit?"));
  if (legs.length > 1) {
    const shares = legs.map((leg) => `${number(fusion[leg])} of ${leg === "bm25" ? LEGS.bm25 : `the ${leg} leg`}`);
    details.append(make("p", "", `Score ${number(hit.score)} = ${shares.join(" + ")}`));
  }
  const { words } = hit.explanation;
  if (words !== undefined) details.append(make("p", "", `The document has ${Math.round(100 * words)} % of the query's words.`));
  const ask = makeButton("", "All terms of this document", () => showTerms(hit.id, ask));
  details.append(tokenTable(tokens, legs.filter((leg) => leg !== "bm25")), ask); // BM25 reads words, not tokens
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
    const item = make("li", term.in_text ? "" : "added", `${piece(term.token)} ${term.impact}`);
    if (!term.in_text) item.append(make("span", "hidden", ", added by the encoder"));
    return item;
  }));
  const added = terms.filter((term) => !term.in_text).length;
  const told = `${terms.length} terms with their impacts; ${added} of them, in colour, are not in the text.`;
  button.replaceWith(make("p", "", told), list);
}

// The score as one bar, made of what each leg adds to it, beside the best hit's; and what each leg says of the hit. The
// bar is only drawn where the best hit is a match at all, and so has `best`.
function scoresElement(hit, best) {
  const scores = make("dl"), bar = make("dd", "bar"), shares = hit.explanation?.fusion || {};
  bar.setAttribute("aria-hidden", "true");
  for (const leg of Object.keys(LEGS)) fillOf(bar, best > 0 ? shares[leg] / best : 0, leg);
  scores.append(make("dt", "", "Score"), make("dd", "", number(hit.score)), ...(best === undefined ? [] : [bar]));
  for (const [leg, name] of Object.entries(LEGS)) {
    if (leg === "bm25" && !hit.bm25) continue;
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
  if (hit.group?.candidates > 1) facts.unshift(`${hit.group.candidates - 1} more of this file among the candidates`);
  if (title && title.whole !== hit.id) facts.unshift(hit.id);
  if (facts.length) left.append(make("div", "facts", facts.join(" · ").slice(0, 200)));
  if (text) left.append(textElement(text, title ? title.text : hit.id));
  item.dataset.id = hit.id;
  item.tabIndex = -1;
  item.append(left, scoresElement(hit, best));
  if (hit.explanation) item.append(why(hit));
  return item;
}
