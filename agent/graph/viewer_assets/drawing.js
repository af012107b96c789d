"use strict";

/* The picture: items and edges on a canvas, with cytoscape. Knows how things look, not what they mean.

   Labels are painted on a canvas, so nothing in them can become part of the page. */

const Drawing = (() => {
  const WIDTH = 224;
  const HEIGHT = 58;
  const SIZES = { width: WIDTH, height: HEIGHT, gapX: 28, gapY: 40 };
  const READABLE = 0.5;
  const NORMAL = 0.85;
  const AT_FIRST = 120;
  const AT_ONCE = 80;
  /** Items that are drawn before the page is ready, and in each step after that: some tens of milliseconds. */
  const BETWEEN = 20;
  /** Milliseconds that are left for somebody to do something between two such steps. */
  const IN_ADVANCE = 3000;
  /** Of larger graphs, only what comes into sight is drawn. */
  const PLAIN = 800;
  /** Items beyond which edges are plain lines: down is onward anyway, and arrows take their time. */

  function colours() {
    const style = getComputedStyle(document.documentElement);
    return (name) => style.getPropertyValue(`--${name}`).trim();
  }

  function sheet() {
    const colour = colours();
    const side = (name) => ({
      "background-color": colour(`${name}-fill`),
      "border-color": colour(`${name}-line`),
      color: colour(`${name}-text`),
    });
    return [
      {
        selector: "node",
        style: {
          shape: "round-rectangle",
          width: WIDTH,
          height: HEIGHT,
          "border-width": 1.5,
          label: "data(label)",
          "text-wrap": "wrap",
          "text-max-width": 4 * WIDTH,
          "text-valign": "center",
          "text-halign": "center",
          "text-justification": "center",
          "font-family": "system-ui, sans-serif",
          "font-size": 12,
          "line-height": 1.25,
          "min-zoomed-font-size": 5,
          "overlay-opacity": 0,
        },
      },
      { selector: ".user", style: side("user") },
      { selector: ".assistant", style: side("assistant") },
      { selector: ".run", style: { ...side("run"), "border-style": "dashed" } },
      { selector: ".closed", style: { "border-style": "double", "border-width": 5 } },
      {
        selector: "edge",
        style: {
          width: 1.5,
          "line-color": colour("edge"),
          "target-arrow-color": colour("edge"),
          "target-arrow-shape": "triangle",
          "arrow-scale": 0.8,
          "curve-style": "straight",
          "source-endpoint": "0 50%",
          "target-endpoint": "0 -50%",
          "overlay-opacity": 0,
        },
      },
      {
        selector: "edge.routed",
        style: {
          "curve-style": "round-segments",
          "segment-weights": (edge) => edge.data("weights"),
          "segment-distances": (edge) => edge.data("distances"),
          "segment-radii": 12,
          "edge-distances": "endpoints",
        },
      },
      {
        selector: "edge.plain",
        style: { "curve-style": "haystack", "haystack-radius": 0, "target-arrow-shape": "none" },
      },
      { selector: ".common", style: side("common") },
      { selector: ".left", style: { "border-color": colour("left"), "border-width": 4 } },
      { selector: ".right", style: { "border-color": colour("right"), "border-width": 4 } },
      { selector: ".faded", style: { opacity: 0.25 } },
      { selector: ".match", style: { "border-color": colour("match"), "border-width": 4 } },
      { selector: ".current", style: { "outline-color": colour("match"), "outline-width": 5, "outline-offset": 2 } },
      { selector: ".chosen", style: { "outline-color": colour("chosen"), "outline-width": 4, "outline-offset": 2 } },
    ];
  }

  function lineKey(source, target) {
    return `${source.key}>${target.key}`;
  }

  /** Points as cytoscape wants them: how far along the line between the ends, and how far beside it. */
  function beside(source, target, points) {
    const start = { x: source.x, y: source.y + HEIGHT / 2 };
    const [dx, dy] = [target.x - start.x, target.y - HEIGHT / 2 - start.y];
    const length = Math.hypot(dx, dy) || 1;
    return {
      weights: points.map(({ x, y }) => ((x - start.x) * dx + (y - start.y) * dy) / length ** 2),
      distances: points.map(({ x, y }) => ((y - start.y) * dx - (x - start.x) * dy) / length),
    };
  }

  class Picture {
    /** `completed()` is called whenever all that should be drawn has been. */
    constructor(container, size, completed) {
      this.items = [];
      this.edges = [];
      this.places = [];
      this.pending = new Set();
      this.atKey = new Map();
      this.classes = new Map();
      this.completed = completed;
      this.begun = false;
      this.cy = cytoscape({
        container,
        style: sheet(),
        minZoom: 0.01,
        maxZoom: 3,
        boxSelectionEnabled: false,
        autoungrabify: true,
        autounselectify: true,
        hideEdgesOnViewport: size > 1500,
        textureOnViewport: size > 1500,
      });
      this.cy.on("viewport", () => this.fillSoon());
    }

    /** Call `chosen(item)` on a click, `opened(item)` on a double one, `emptied()` on one beside them all. */
    listen(chosen, opened, emptied) {
      const item = (event) => this.items[this.atKey.get(event.target.id())];
      this.cy.on("tap", "node", (event) => chosen(item(event)));
      this.cy.on("dbltap", "node", (event) => opened(item(event)));
      this.cy.on("tap", (event) => event.target === this.cy && emptied());
    }

    restyle() {
      this.cy.style(sheet());
    }

    // What is drawn

    /** Draw these items and edges (pairs of places among them). What stays keeps its element; `anchor` its place. */
    show(items, edges, labelOf, classesOf, anchor) {
      const before = anchor && this.places[this.atKey.get(anchor.key)];
      const wanted = new Set(items.map((item) => item.key));
      const arranged = Arranging.arranged(items.length, edges, SIZES);
      const rerouted = arranged.by === "dagre" || this.arrangement === "dagre";
      const lines = new Set(edges.map(([from, to]) => lineKey(items[from], items[to])));
      this.cy.batch(() => {
        this.cy.edges().filter((edge) => rerouted || !lines.has(edge.id())).remove();
        this.cy.nodes().filter((node) => !wanted.has(node.id())).remove();
      });
      for (const key of this.classes.keys()) if (!wanted.has(key)) this.classes.delete(key);
      Object.assign(this, { items, edges, labelOf, classesOf, places: arranged.places, arrangement: arranged.by });
      this.atKey = new Map(items.map((item, at) => [item.key, at]));
      this.around = items.map(() => []);
      for (const [number, [from, to]] of edges.entries()) {
        const line = { from, to, route: arranged.routes[number] };
        this.around[from].push(line);
        this.around[to].push(line);
      }
      const kept = [...this.classes.keys()].map((key) => this.atKey.get(key));
      this.pending = new Set(items.keys());
      for (const at of kept) this.pending.delete(at);
      this.update(kept);
      const after = anchor && this.places[this.atKey.get(anchor.key)];
      if (!this.begun) this.begin();
      else if (before && after) {
        this.cy.panBy({ x: (before.x - after.x) * this.cy.zoom(), y: (before.y - after.y) * this.cy.zoom() });
      }
      this.fill(arranged.by === "dagre" ? items.length : AT_FIRST);
    }

    /** Items that stay: they move, what is folded into them may have changed, and so may what leads to them. */
    update(numbers) {
      this.cy.batch(() => {
        for (const at of numbers) {
          const node = this.cy.getElementById(this.items[at].key);
          node.position({ ...this.places[at] });
          node.data("label", this.labelOf(this.items[at]));
        }
        this.cy.edges().classes(this.items.length > PLAIN ? "plain" : "");
        this.cy.add(this.lines(numbers));
      });
    }

    /** Make elements for these items, and for the edges whose ends are both there then. */
    add(numbers) {
      for (const at of numbers) this.pending.delete(at);
      const nodes = numbers.map((at) => {
        const item = this.items[at];
        const classes = this.classesOf(item);
        this.classes.set(item.key, classes);
        const data = { id: item.key, label: this.labelOf(item) };
        return { group: "nodes", data, classes, position: { ...this.places[at] } };
      });
      this.cy.batch(() => this.cy.add([...nodes, ...this.lines(numbers)]));
    }

    /** The edges of these items that can be drawn now and are not yet. */
    lines(numbers) {
      const found = new Map();
      for (const { from, to, route } of numbers.flatMap((at) => this.around[at])) {
        const [source, target] = [this.items[from], this.items[to]];
        const id = lineKey(source, target);
        if (this.pending.has(from) || this.pending.has(to) || this.cy.getElementById(id).nonempty()) continue;
        const classes = route.length ? "routed" : this.items.length > PLAIN ? "plain" : "";
        const bent = route.length ? beside(this.places[from], this.places[to], route) : {};
        found.set(id, { group: "edges", data: { id, source: source.key, target: target.key, ...bent }, classes });
      }
      return [...found.values()];
    }

    /** Draw some of what is missing: what is in sight first, and of graphs that are not too large the rest, too. */
    fill(limit = AT_ONCE) {
      clearTimeout(this.timer);
      this.timer = undefined;
      const { x1, y1, x2, y2, w, h } = this.cy.extent();
      const inSight = ({ x, y }) => x > x1 - w / 2 && x < x2 + w / 2 && y > y1 - h / 2 && y < y2 + h / 2;
      let next = [];
      for (const at of this.pending) if (inSight(this.places[at])) next.push(at);
      const room = IN_ADVANCE - (this.items.length - this.pending.size);
      if (next.length === 0 && room > 0) next = [...this.pending].slice(0, room);
      if (next.length) this.add(next.slice(0, limit));
      if (next.length) this.timer = setTimeout(() => this.fill(), BETWEEN);
      else this.completed();
    }

    fillSoon() {
      if (this.pending.size && this.timer === undefined) this.timer = setTimeout(() => this.fill(), 60);
    }

    /** The classes of items may have changed; only what did is touched. */
    paint() {
      this.cy.batch(() => {
        for (const [key, words] of this.classes) {
          const now = this.classesOf(this.items[this.atKey.get(key)]);
          if (now !== words) {
            this.cy.getElementById(key).classes(now);
            this.classes.set(key, now);
          }
        }
      });
    }

    // What is in sight

    fit() {
      const [xs, ys] = [this.places.map(({ x }) => x), this.places.map(({ y }) => y)];
      if (xs.length === 0) return;
      const least = (values) => values.reduce((a, b) => Math.min(a, b));
      const most = (values) => values.reduce((a, b) => Math.max(a, b));
      const [left, right, top, bottom] = [least(xs), most(xs), least(ys), most(ys)];
      const [width, height] = [this.cy.width(), this.cy.height()];
      const zoom = Math.min(1.2, (width - 40) / (right - left + WIDTH), (height - 40) / (bottom - top + HEIGHT));
      this.cy.zoom(Math.max(zoom, this.cy.minZoom()));
      this.aim((left + right) / 2, (top + bottom) / 2, width / 2, height / 2);
    }

    /** Bring a place of the graph to a place of the window. */
    aim(x, y, toX, toY) {
      this.cy.pan({ x: toX - x * this.cy.zoom(), y: toY - y * this.cy.zoom() });
    }

    zoom(factor) {
      const middle = { x: this.cy.width() / 2, y: this.cy.height() / 2 };
      this.cy.zoom({ level: this.cy.zoom() * factor, renderedPosition: middle });
    }

    /** All of it if that can be read; else its beginning. */
    begin() {
      this.begun = true;
      this.fit();
      if (this.cy.zoom() >= READABLE || this.items.length === 0) return;
      this.cy.zoom(NORMAL);
      this.aim(this.places[0].x, this.places[0].y, this.cy.width() / 2, 20 + HEIGHT / 2);
    }

    /** Bring an item into sight, with those next to it; nothing moves if it is there already. */
    seek(item) {
      const at = this.atKey.get(item.key);
      const beside = this.around[at].slice(0, AT_ONCE).flatMap(({ from, to }) => [from, to]);
      const near = [...new Set([at, ...beside])].filter((other) => this.pending.has(other));
      if (near.length) this.add(near);
      const { x, y } = this.places[at];
      const [width, height, margin] = [this.cy.width(), this.cy.height(), 60];
      if (this.cy.zoom() < READABLE) {
        this.cy.zoom(NORMAL);
        this.aim(x, y, width / 2, height / 2);
      }
      const [shownX, shownY] = [x * this.cy.zoom() + this.cy.pan().x, y * this.cy.zoom() + this.cy.pan().y];
      const inside = shownX > margin && shownY > margin && shownX < width - margin && shownY < height - margin;
      if (!inside) this.aim(x, y, width / 2, height / 2);
    }

    /** Where everything that is drawn is, in pixels of the window: for tests, and for tools that point at things. */
    geometry() {
      const { left, top } = this.cy.container().getBoundingClientRect();
      return this.cy.nodes().map((node) => {
        const { x, y } = node.renderedPosition();
        return {
          key: node.id(),
          x: left + x,
          y: top + y,
          width: node.renderedWidth(),
          height: node.renderedHeight(),
          classes: node.classes(),
          label: node.data("label"),
          fill: node.style("background-color"),
        };
      });
    }
  }

  return { Picture };
})();
