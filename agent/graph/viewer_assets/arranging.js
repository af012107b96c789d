"use strict";

/* Where things go. Small graphs are arranged by dagre, which leads long edges around nodes; large ones by our layers. */

const Arranging = (() => {
  const FINE = 240;
  /** Items and edges that dagre may be asked to arrange: some tenths of a second. */

  /** {places, routes, by}: the middle of each item, and the points by which each edge goes that is not straight. */
  function arranged(count, edges, { width, height, gapX, gapY }) {
    if (count + edges.length <= FINE) {
      try {
        return { ...finely(count, edges, { width, height, gapX, gapY }), by: "dagre" };
      } catch {
        // a shape that dagre cannot do: ours can
      }
    }
    const places = Layers.place(count, edges, width + gapX, height + gapY);
    return { places, routes: edges.map(() => []), by: "layers" };
  }

  function finely(count, edges, { width, height, gapX, gapY }) {
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ rankdir: "TB", nodesep: gapX, ranksep: gapY, edgesep: gapX });
    graph.setDefaultEdgeLabel(() => ({}));
    for (let item = 0; item < count; item++) graph.setNode(String(item), { width, height });
    for (const [from, to] of edges) graph.setEdge(String(from), String(to));
    dagre.layout(graph);
    const places = Array.from({ length: count }, (_, item) => {
      const { x, y } = graph.node(String(item));
      return { x, y };
    });
    // The outer points lie on the border of the nodes; an edge to the next layer has one more, and needs none.
    const routes = edges.map(([from, to]) => {
      const { points } = graph.edge(String(from), String(to));
      return points.length > 3 ? bends(points.slice(1, -1)) : [];
    });
    return { places, routes };
  }

  /** The points without those that lie on the line between their neighbours. */
  function bends(points) {
    const straight = (a, b, c) => Math.abs((b.x - a.x) * (c.y - a.y) - (b.y - a.y) * (c.x - a.x)) < 1;
    return points.filter((point, at) => {
      const [before, after] = [points[at - 1], points[at + 1]];
      return !before || !after || !straight(before, point, after);
    });
  }

  return { arranged };
})();
