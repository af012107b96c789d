"use strict";

/* What stands beside the picture: a node's content, the branches, two branches compared.

   Everything that comes from the file becomes a text node. Elements and attributes are made from the constants in this
   file alone; the only addresses are those of pictures that the file carries by value. */

const Panel = (() => {
  const AT_ONCE = 100;
  const LONGEST = 200000;

  /** An element with classes, and children that are elements or text. */
  function make(tag, classes, ...children) {
    const element = document.createElement(tag);
    if (classes) element.className = classes;
    element.append(...children.filter((child) => child !== undefined && child !== ""));
    return element;
  }

  function button(text, action, classes) {
    const element = make("button", classes, text);
    element.type = "button";
    element.addEventListener("click", action);
    return element;
  }

  function facts(pairs) {
    const list = make("dl", "facts");
    for (const [name, value] of pairs) {
      if (value !== "" && value !== undefined) list.append(make("dt", "", name), make("dd", "", value));
    }
    return list;
  }

  /** The text with what was searched for marked in it. */
  function marked(text, pattern) {
    const fragment = document.createDocumentFragment();
    let from = 0;
    if (pattern) {
      for (const match of text.matchAll(pattern)) {
        if (match[0] === "") break;
        fragment.append(text.slice(from, match.index), make("mark", "", match[0]));
        from = match.index + match[0].length;
      }
    }
    fragment.append(text.slice(from));
    return fragment;
  }

  function textBlock(text, pattern) {
    const block = make("pre", "", marked(text.slice(0, LONGEST), pattern));
    block.dir = "auto";
    block.tabIndex = 0;
    if (text.length <= LONGEST) return block;
    const rest = button(`Show all ${Reading.count(text.length)} characters`, () => {
      block.replaceChildren(marked(text, pattern));
      rest.remove();
    });
    return make("div", "", block, rest);
  }

  function piece({ title, text, minor, error, picture }, pattern) {
    const body = [];
    if (picture) {
      const image = document.createElement("img");
      image.alt = title;
      image.src = picture;
      body.push(image);
    }
    body.push(textBlock(text, pattern));
    if (minor) return make("details", "piece minor", make("summary", "", title), ...body);
    return make("section", `piece${error ? " error" : ""}`, make("h3", "", marked(title, pattern)), ...body);
  }

  /** A list that grows by request. */
  function listing(things, row) {
    const list = make("ul", "listing");
    let shown = 0;
    const more = button("", () => grow());
    function grow() {
      list.append(...things.slice(shown, shown + AT_ONCE).map((thing) => make("li", "", row(thing))));
      shown += AT_ONCE;
      more.textContent = `Show more (${Reading.count(Math.max(0, things.length - shown))} left)`;
      more.hidden = shown >= things.length;
    }
    grow();
    return make("div", "", list, more);
  }

  function name(node) {
    return `${node.kind}${node.words ? `: ${node.words}` : ""}`;
  }

  function chip(node, go) {
    return button(name(node), () => go(node.index), `chip ${node.side}`);
  }

  function tokens({ input, output }) {
    if (input === undefined && output === undefined) return "";
    return `${Reading.count(input ?? 0)} in, ${Reading.count(output ?? 0)} out`;
  }

  function sums(totals) {
    return facts([
      ["Nodes", Reading.count(totals.nodes)],
      ["Tokens", totals.input || totals.output ? tokens(totals) : ""],
      ["Cost", Reading.money(totals.cost)],
      ["Time in calls", Reading.duration(totals.latency)],
      ["From first to last", Reading.duration(totals.span)],
    ]);
  }

  // A node

  function usageFacts(usage) {
    return Object.entries(usage)
      .filter(([, value]) => !Reading.isNothing(value) && value !== 0)
      .map(([key, value]) => `${key} ${Reading.textOf(value)}`)
      .join(", ");
  }

  function nodeDetails(graph, node, pattern, go, actions) {
    const known = ["usage", "cost", "latency_ms", "model", "provider"];
    const metadata = Object.entries(node.metadata)
      .filter(([key, value]) => !known.includes(key) && !Reading.isNothing(value))
      .map(([key, value]) => [key, marked(Reading.textOf(value), pattern)]);
    const relatives = (title, indices) =>
      indices.length ? [make("h3", "", title), listing(indices, (at) => chip(graph.nodes[at], go))] : [];
    return make(
      "article",
      node.side,
      make("h2", "", node.kind),
      make("div", "actions", ...actions),
      facts([
        ["Id", marked(node.id, pattern)],
        ["Time", node.time === undefined ? "" : Reading.instant(node.time)],
        ["Model", node.model],
        ["Provider", node.provider],
        ["Took", Reading.duration(node.latency)],
        ["Cost", Reading.money(node.cost)],
        ["Tokens", tokens(node.tokens)],
        ["Usage", usageFacts(node.usage)],
        ["Missing parents", node.missing.join(", ")],
      ]),
      ...Reading.contentOf(node).map((part) => piece(part, pattern)),
      ...(metadata.length ? [make("h3", "", "Metadata"), facts(metadata)] : []),
      ...node.extra.map((part) => piece(part, pattern)),
      ...relatives("Before", node.parents),
      ...relatives("After", node.children),
    );
  }

  function runDetails(graph, members, go, actions) {
    return make(
      "article",
      "run",
      make("h2", "", `${Reading.count(members.length)} nodes in a row`),
      make("div", "actions", ...actions),
      sums(Reading.totalsOf(graph.nodes, members)),
      listing(members, (at) => chip(graph.nodes[at], go)),
    );
  }

  // Branches

  function branches(graph, follow) {
    return listing(graph.heads, (head) => {
      const node = graph.nodes[head];
      const totals = Reading.totalsOf(graph.nodes, Reading.branchOf(graph.nodes, head));
      return make("section", "branch", button(name(node), () => follow(head), `chip ${node.side}`), sums(totals));
    });
  }

  // Two branches

  /** {common, left, right}: numbers of what two branches share, and of what only one of them has. */
  function difference(graph, left, right) {
    const [one, other] = [left, right].map((head) => Reading.branchOf(graph.nodes, head));
    const [inOne, inOther] = [new Set(one), new Set(other)];
    return {
      common: new Set(one.filter((at) => inOther.has(at))),
      left: new Set(one.filter((at) => !inOther.has(at))),
      right: new Set(other.filter((at) => !inOne.has(at))),
    };
  }

  function comparison(graph, heads, parts, go) {
    const column = (side, head, members) =>
      make(
        "section",
        `column ${side}`,
        make("h3", "", `${side === "left" ? "First" : "Second"}: ${name(graph.nodes[head])}`),
        make("h4", "", "Whole branch"),
        sums(Reading.totalsOf(graph.nodes, Reading.branchOf(graph.nodes, head))),
        make("h4", "", members.length ? "Only here" : "Nothing that the other lacks"),
        members.length ? sums(Reading.totalsOf(graph.nodes, members)) : undefined,
        listing(members, (at) => {
          const node = graph.nodes[at];
          const content = Reading.contentOf(node).filter((part) => !part.minor);
          return make("div", "turn", chip(node, go), ...content.map((part) => piece(part)));
        }),
      );
    return make(
      "div",
      "",
      make("p", "shared", `${Reading.count(parts.common.size)} nodes in common, greyed in the picture.`),
      make("div", "columns", column("left", heads[0], [...parts.left]), column("right", heads[1], [...parts.right])),
    );
  }

  return { make, button, name, nodeDetails, runDetails, branches, difference, comparison };
})();
