"use strict";
// The same query ranked in several ways, side by side. A document that is pointed at lights up in every column.
const MODES = { dense: "Dense", sparse: "Sparse", hybrid: "Hybrid" };

function compare(modes, answers) {
  const ranks = answers.map((answer) => new Map(answer.hits.map((hit) => [hit.id, hit.rank])));
  byId("compare").replaceChildren(...modes.map((mode, column) => {
    const section = make("section"), list = make("ol"), { hits: found } = answers[column];
    list.setAttribute("aria-label", `${MODES[mode]} hits`);
    list.append(...found.map((hit) => {
      const item = make("li"), title = excerpt(hit, "title");
      item.dataset.id = hit.id;
      item.append(make("span", "rank", `${hit.rank} · `));
      if (title) shorten(item, title); else item.append(hit.id);
      const others = modes.flatMap((other, i) => (i === column ? [] : `${MODES[other]} ${ranks[i].get(hit.id) || "–"}`));
      item.append(make("small", "", others.join(" · ")));
      return item;
    }));
    section.append(make("h2", `leg ${mode}`, MODES[mode]), found.length ? list : make("p", "", "Nothing found."));
    return section;
  }));
}

for (const [event, on] of [["pointerover", true], ["pointerout", false]]) {
  byId("compare").addEventListener(event, ({ target }) => {
    const id = target.closest("li")?.dataset.id;
    if (id === undefined) return;
    for (const item of byId("compare").querySelectorAll("li")) {
      if (item.dataset.id === id) item.classList.toggle("same", on);
    }
  });
}
