"use strict";

/* The page: joins the graph, its folds, the picture and the panel, and listens to mouse and keyboard. */

const GraphViewer = (() => {
  const STARTS_FOLDED = 300;
  const LABEL_WIDTH = 29;
  const PAUSE = 120;
  const TABS = ["branches", "details", "compare"];
  const $ = (id) => document.getElementById(id);

  const graph = Reading.graphOf($("graph-data").textContent);
  const folds = new Folding.Folds(graph.nodes);
  if (graph.nodes.length > STARTS_FOLDED) folds.foldRuns();
  const picture = new Drawing.Picture($("picture"), graph.nodes.length, completed);

  let view = folds.view();
  /** The chosen node, by number; what a search found; what a comparison or a branch highlights. */
  let chosen;
  let search = { pattern: undefined, found: [], at: -1, inside: new Set() };
  let compared;
  let path;

  // Drawing

  function labelOf(item) {
    const lines = (...texts) => texts.filter(Boolean).join("\n");
    const behind = item.behind.length ? `+${Reading.count(item.behind.length)} folded` : "";
    if (item.run) {
      const totals = Reading.totalsOf(graph.nodes, item.members);
      const cost = [Reading.money(totals.cost), Reading.duration(totals.latency)].filter(Boolean).join(" · ");
      return lines(`${Reading.count(item.members.length)} nodes in a row`, cost, behind || "double click opens");
    }
    const node = graph.nodes[item.first];
    const figures = [Reading.money(node.cost), Reading.duration(node.latency)].filter(Boolean).join(" · ");
    return lines([node.kind, behind].filter(Boolean).join(" · "), Reading.brief(node.words, LABEL_WIDTH), figures);
  }

  function classesOf(item) {
    const words = [item.run ? "run" : graph.nodes[item.first].side];
    const all = item.behind.length ? item.members.concat(item.behind) : item.members;
    const any = (set) => all.some((at) => set.has(at));
    if (item.closed) words.push("closed");
    if (compared) {
      if (any(compared.left)) words.push("left");
      if (any(compared.right)) words.push("right");
      if (words.length === 1 + (item.closed ? 1 : 0)) words.push(any(compared.common) ? "common" : "faded");
    }
    if (path && !any(path)) words.push("faded");
    if (search.found.length && any(search.inside)) words.push("match");
    if (search.at >= 0 && all.includes(search.found[search.at])) words.push("current");
    if (chosen !== undefined && item.members.includes(chosen)) words.push("chosen");
    return words.join(" ");
  }

  function paint() {
    picture.paint();
  }

  function redraw(kept) {
    delete document.documentElement.dataset.complete;
    view = folds.view();
    picture.show(view.items, view.edges, labelOf, classesOf, kept === undefined ? undefined : itemAt(kept));
    paint();
    tellSize();
  }

  function completed() {
    document.documentElement.dataset.complete = String(Math.round(performance.now()));
  }

  function tellSize() {
    $("shown").textContent = `${Reading.count(view.items.length)} shown of ${Reading.count(graph.nodes.length)} nodes`;
  }

  function tell(text) {
    $("status").textContent = text;
  }

  // Choosing

  function itemAt(at) {
    return view.items[view.itemOf[at]];
  }

  function openTab(name) {
    const width = picture.cy.width();
    for (const tab of TABS) {
      $(`tab-${tab}`).setAttribute("aria-selected", String(tab === name));
      $(`tab-${tab}`).tabIndex = tab === name ? 0 : -1;
      $(tab).hidden = tab !== name;
    }
    document.body.classList.toggle("comparing", name === "compare");
    picture.cy.resize();
    picture.cy.panBy({ x: (picture.cy.width() - width) / 2, y: 0 });
  }

  function actionsFor(item) {
    const actions = [];
    const offer = (text, change) => {
      const action = () => {
        change();
        redraw(item.first);
        choose(item.first, false);
      };
      actions.push(Panel.button(text, action));
    };
    if (item.run) {
      offer("Open", () => folds.openPiece(item.first));
      return actions;
    }
    if (folds.runOf[item.first] >= 0) offer("Fold this run", () => folds.foldRun(item.first));
    if (graph.nodes[item.first].children.length) {
      offer(item.closed ? "Open what follows" : "Fold what follows", () => folds.toggleSubtree(item.first));
    }
    return actions;
  }

  /** Show a node's content. A node inside a folded run stands for the run, unless it shall be revealed. */
  function choose(at, reveal = true) {
    if (reveal && (itemAt(at).first !== at || itemAt(at).run)) {
      folds.reveal(at);
      redraw(at);
    }
    chosen = at;
    const item = itemAt(at);
    const details = item.run
      ? Panel.runDetails(graph, item.members, choose, actionsFor(item))
      : Panel.nodeDetails(graph, graph.nodes[at], search.pattern, choose, actionsFor(item));
    $("details").replaceChildren(details);
    if ($("details").hidden) openTab("details");
    picture.seek(item);
    paint();
    tell(item.run ? `${item.members.length} nodes in a row` : `${Panel.name(graph.nodes[at])}, node ${at + 1}`);
  }

  function toggle(item) {
    if (item.run) folds.openPiece(item.first);
    else folds.toggleSubtree(item.first);
    redraw(item.first);
    choose(item.first, false);
  }

  // Searching

  let texts;
  function lookFor(words) {
    texts ??= graph.nodes.map(Reading.haystack);
    const pattern = words ? new RegExp(words.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"), "giu") : undefined;
    const found = [];
    if (pattern) {
      texts.forEach((text, at) => {
        pattern.lastIndex = 0;
        if (pattern.test(text)) found.push(at);
      });
    }
    search = { pattern, found, at: -1, inside: new Set(found) };
    tellFound();
    paint();
  }

  function tellFound() {
    const { pattern, found, at } = search;
    const number = Reading.count(found.length);
    $("found").textContent = !pattern ? "" : at < 0 ? `${number} found` : `${Reading.count(at + 1)} of ${number}`;
    $("previous").disabled = $("next").disabled = found.length === 0;
  }

  function step(by) {
    const length = search.found.length;
    if (!length) return;
    search.at = search.at < 0 && by < 0 ? length - 1 : (search.at + by + length) % length;
    tellFound();
    choose(search.found[search.at]);
  }

  let pause;
  function searched(atOnce) {
    clearTimeout(pause);
    const look = () => {
      pause = undefined;
      lookFor($("search").value);
    };
    if (atOnce) look();
    else pause = setTimeout(look, PAUSE);
  }

  // Branches

  function follow(head) {
    compared = undefined;
    path = new Set(Reading.branchOf(graph.nodes, head));
    choose(head);
    paint();
  }

  function compare() {
    const heads = [$("first"), $("second")].map((select) => Number(select.value));
    path = undefined;
    compared = Panel.difference(graph, ...heads);
    $("comparison").replaceChildren(Panel.comparison(graph, heads, compared, choose));
    paint();
    tell(`${compared.left.size} nodes only in the first branch, ${compared.right.size} only in the second`);
  }

  function clear() {
    compared = path = undefined;
    $("comparison").replaceChildren();
    $("search").value = "";
    lookFor("");
  }

  function fillChoices() {
    for (const [at, select] of [$("first"), $("second")].entries()) {
      select.append(
        ...graph.heads.map((head, place) => {
          const option = Panel.make("option", "", `${place + 1}. ${Panel.name(graph.nodes[head])}`);
          option.value = String(head);
          return option;
        }),
      );
      select.selectedIndex = Math.min(at, graph.heads.length - 1);
    }
    $("do-compare").disabled = graph.heads.length < 2;
  }

  // Colours

  const system = matchMedia("(prefers-color-scheme: dark)");
  let asked;

  /** The colours that somebody asked for here, or else those of the system. */
  function themed() {
    const theme = asked ?? (system.matches ? "dark" : "light");
    document.documentElement.dataset.theme = theme;
    $("theme").setAttribute("aria-pressed", String(theme === "dark"));
    picture.restyle();
  }

  // Listening

  /** Where an arrow key leads: to a parent or child, or to the neighbour on the same level. */
  function neighbour(key) {
    const item = itemAt(chosen);
    const here = view.items.indexOf(item);
    if (key === "ArrowUp") return view.edges.find(([, to]) => to === here)?.[0];
    if (key === "ArrowDown") return view.edges.find(([from]) => from === here)?.[1];
    const place = (at) => picture.places[at];
    const { x, y } = place(here);
    const right = key === "ArrowRight";
    let best;
    view.items.forEach((_, at) => {
      const there = place(at);
      if (Math.abs(there.y - y) > 20 || (right ? there.x <= x : there.x >= x)) return;
      if (best === undefined || Math.abs(there.x - x) < Math.abs(place(best).x - x)) best = at;
    });
    return best;
  }

  function pressed(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key.startsWith("Arrow")) {
      const next = chosen === undefined ? 0 : neighbour(event.key);
      if (next !== undefined && view.items.length) choose(view.items[next].first, false);
    } else if ((event.key === "Enter" || event.key === " ") && chosen !== undefined) {
      toggle(itemAt(chosen));
    } else if (event.key === "+" || event.key === "-") {
      picture.zoom(event.key === "+" ? 1.25 : 0.8);
    } else if (event.key === "0") {
      picture.fit();
    } else {
      return;
    }
    event.preventDefault();
  }

  function listen() {
    picture.listen((item) => choose(item.first, false), toggle, () => {
      chosen = undefined;
      paint();
    });
    $("picture").addEventListener("keydown", pressed);
    $("search").addEventListener("input", () => searched(false));
    $("search").addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      if (pause !== undefined) searched(true);
      step(event.shiftKey ? -1 : 1);
    });
    $("previous").addEventListener("click", () => step(-1));
    $("next").addEventListener("click", () => step(1));
    $("fold").addEventListener("click", () => {
      folds.foldRuns();
      redraw(chosen);
    });
    $("unfold").addEventListener("click", () => {
      folds.unfoldAll();
      redraw(chosen);
    });
    $("fit").addEventListener("click", () => picture.fit());
    $("do-compare").addEventListener("click", compare);
    $("theme").addEventListener("click", () => {
      asked = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
      themed();
    });
    system.addEventListener("change", themed);
    document.addEventListener("keydown", (event) => {
      const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
      if (event.key === "Escape") clear();
      else if (event.key === "/" && !typing) {
        event.preventDefault();
        $("search").focus();
      }
    });
    for (const [at, tab] of TABS.entries()) {
      $(`tab-${tab}`).addEventListener("click", () => openTab(tab));
      $(`tab-${tab}`).addEventListener("keydown", (event) => {
        const by = { ArrowRight: 1, ArrowLeft: TABS.length - 1 }[event.key];
        if (!by) return;
        const next = TABS[(at + by) % TABS.length];
        openTab(next);
        $(`tab-${next}`).focus();
      });
    }
  }

  function start() {
    themed();
    fillChoices();
    tellFound();
    listen();
    openTab("branches");
    redraw();
    $("branches").append(Panel.branches(graph, follow));
    picture.cy.one("render", () =>
      requestAnimationFrame(() => {
        document.documentElement.dataset.ready = String(Math.round(performance.now()));
      }),
    );
    picture.cy.forceRender();
  }

  start();

  return Object.freeze({
    geometry: () => picture.geometry(),
    arrangement: () => picture.arrangement,
    choose: (at) => choose(at),
    size: graph.nodes.length,
  });
})();
