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
  marked(element, text, marks);
  if (more) element.append(" …");
  return element;
}

// The text of a hit: its snippet, and on demand the whole of it with the same marks.
function textElement(part, name) {
  const words = shorten(make("p"), part), box = make("div", "text", words);
  if (!part.cut && !part.more) return box;
  const button = makeButton("link", () => {
    const whole = box.classList.toggle("whole");
    words.replaceChildren();
    if (whole) marked(words, part.whole, part.marks.map(([from, to]) => [from + part.start, to + part.start]));
    else shorten(words, part);
    button.firstChild.textContent = whole ? "Shorter" : "Whole text";
  }, "Whole text", hidden(` of ${name}`));
  box.append(" ", button);
  return box;
}

function shareCell(leg, share, highest) {
  const bar = make("span", share < 0 ? "bar below" : "bar", fill(highest > 0 ? Math.abs(share) / highest : 0, leg));
  bar.setAttribute("aria-hidden", "true");
  const parts = share === null ? [make("b", "", "–")] : [make("b", "", number(share)), bar];
  return make("td", "", make("div", share ? "share" : "share nothing", ...parts));
}

// A word with its shares. A document that has it by meaning alone has none of its forms.
function wordRow(word, legs, highest) {
  const times = word.count > 1 ? [make("small", "", ` × ${word.count}`)] : [];
  const mark = word.added ? [hidden(", "), make("span", "meaning", "added by meaning")] : [];
  const head = Object.assign(make("th", "", word.word, ...times, ...mark), { scope: "row" });
  const known = { dense: word.tokens.length, sparse: word.terms.length }; // 0 where the leg leaves the word out
  return make("tr", "", head, ...legs.map((leg) => shareCell(leg, known[leg] ? word[leg] : null, highest[leg])));
}

// The words in their order, with what each adds to each leg's score.
function wordTable(words, legs) {
  const names = ["Word", ...legs.map((leg) => `Adds to the ${leg} score`)];
  const heads = names.map((name) => Object.assign(make("th", "", name), { scope: "col" }));
  const highest = Object.fromEntries(legs.map((leg) => [leg, Math.max(...words.map((word) => Math.abs(word[leg])))]));
  const caption = make("caption", "hidden", "What each word of the query adds to the scores");
  const rows = words.map((word) => wordRow(word, legs, highest));
  return make("table", "", caption, make("thead", "", make("tr", "", ...heads)), make("tbody", "", ...rows));
}

function why(hit) {
  const { fusion, words, coverage } = hit.explanation, legs = Object.keys(LEGS).filter((leg) => fusion[leg] !== null);
  const divided = legs.filter((leg) => words.some((word) => word[leg] !== null)), said = [];
  if (legs.length > 1) {
    const shares = legs.map((leg) => `${number(fusion[leg])} of the ${leg} leg`);
    if (fusion.feedback) shares.push(`${number(fusion.feedback)} for being like the first hit`);
    said.push(`Score ${number(hit.score)} = ${shares.join(" + ")}`);
  }
  if (coverage !== undefined) said.push(`Title and text have ${Math.round(100 * coverage)} % of the query's terms.`);
  for (const leg of legs) if (!divided.includes(leg)) said.push(`The ${leg} score is not divided among the words.`);
  const table = divided.length ? [wordTable(words, divided)] : [];
  return make("details", "why", make("summary", "", "Why this hit?"), ...said.map((text) => make("p", "", text)), ...table);
}

// The score as one bar, made of what each leg adds to it, beside the best hit's; and what each leg says of the hit. The
// bar is only drawn where the best hit is a match at all, and so has `best`.
function scoresElement(hit, best) {
  const shares = hit.explanation?.fusion || {}, fills = Object.keys(LEGS).map((leg) => fill(best > 0 ? shares[leg] / best : 0, leg));
  const scores = make("dl", "", make("dt", "", "Score"), make("dd", "", number(hit.score))), bar = make("dd", "bar", ...fills);
  bar.setAttribute("aria-hidden", "true");
  if (best !== undefined) scores.append(bar);
  if (hit.matched) scores.append(make("dt", "", "Match"), make("dd", "", hit.matched));
  for (const [leg, name] of Object.entries(LEGS)) {
    if (leg === "dense" && !hasDense()) continue;
    const found = hit[leg], rank = found?.rank ? `rank ${found.rank}` : "not proposed";
    scores.append(make("dt", `leg ${leg}`, name), make("dd", "", found ? `${rank} · ${number(found.score)}` : "–"));
  }
  return scores;
}

function hitElement(hit, best) {
  const { title: _, text: __, ...others } = hit.fields, title = excerpt(hit, "title"), text = excerpt(hit, "text");
  const heading = make("h2", "", make("span", "rank", `${hit.rank} `)), left = make("div", "", heading);
  if (title) shorten(heading, title); else heading.append(hit.id);
  const facts = Object.entries(others).map(([name, value]) => `${label(name)}: ${show(value)}`);
  if (hit.group?.candidates > 1) facts.unshift(`${hit.group.candidates - 1} more of this file among the candidates`);
  if (title && title.whole !== hit.id) facts.unshift(hit.id);
  if (facts.length) left.append(make("div", "facts", facts.join(" · ").slice(0, 200)));
  if (text) left.append(textElement(text, title ? title.text : hit.id));
  const item = make("li", "hit", left, ...(hit.dense || hit.sparse ? [scoresElement(hit, best)] : []), ...(hit.explanation ? [why(hit)] : []));
  item.dataset.id = hit.id;
  return Object.assign(item, { tabIndex: -1 });
}
