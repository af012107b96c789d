"use strict";

/* Places for the items of a large graph, layer under layer, in time that grows about as the graph does.

   dagre makes finer pictures and takes seconds for some hundreds of nodes; this takes milliseconds for thousands. It
   orders each layer by where its neighbours stand, then moves each node as near to them as the others allow. */

const Layers = (() => {
  const ORDERINGS = 6;
  const SHIFTS = 8;

  function ranksOf(count, edges) {
    const rank = new Int32Array(count);
    // Edges come sorted by where they lead, and lead from earlier to later: one look at each is enough.
    for (const [from, to] of edges) rank[to] = Math.max(rank[to], rank[from] + 1);
    return rank;
  }

  function neighbours(count, edges, side) {
    const lists = Array.from({ length: count }, () => []);
    for (const edge of edges) lists[edge[1 - side]].push(edge[side]);
    return lists;
  }

  function mean(numbers, position, otherwise) {
    if (numbers.length === 0) return otherwise;
    let sum = 0;
    for (const number of numbers) sum += position[number];
    return sum / numbers.length;
  }

  /** The nearest positions to the wished ones that keep the order and a distance: blocks that collide move as one. */
  function spread(layer, wished, gap, position) {
    const blocks = [];
    layer.forEach((_, at) => {
      let block = { sum: wished[at] - at * gap, size: 1, from: at };
      while (blocks.length && blocks.at(-1).sum / blocks.at(-1).size >= block.sum / block.size) {
        const before = blocks.pop();
        block = { sum: before.sum + block.sum, size: before.size + block.size, from: before.from };
      }
      blocks.push(block);
    });
    for (const { sum, size, from } of blocks) {
      for (let at = from; at < from + size; at++) position[layer[at]] = sum / size + at * gap;
    }
  }

  /** {x, y} of each item. `edges` are pairs of numbers, each from a lower to a higher one. */
  function place(count, edges, gapX, gapY) {
    const sorted = [...edges].sort((a, b) => a[1] - b[1] || a[0] - b[0]);
    const rank = ranksOf(count, sorted);
    const layers = [];
    for (let item = 0; item < count; item++) (layers[rank[item]] ??= []).push(item);
    const above = neighbours(count, sorted, 0);
    const below = neighbours(count, sorted, 1);
    const position = new Float64Array(count);
    for (const layer of layers) layer.forEach((item, at) => (position[item] = at - layer.length / 2));

    for (let round = 0; round < ORDERINGS; round++) {
      const down = round % 2 === 0;
      const near = down ? above : below;
      for (const layer of down ? layers : [...layers].reverse()) {
        const wished = new Map(layer.map((item) => [item, mean(near[item], position, position[item])]));
        layer.sort((a, b) => wished.get(a) - wished.get(b) || position[a] - position[b]);
        layer.forEach((item, at) => (position[item] = at - (layer.length - 1) / 2));
      }
    }
    for (const layer of layers) layer.forEach((item) => (position[item] *= gapX));
    for (let round = 0; round < SHIFTS; round++) {
      const down = round % 2 === 1;
      const near = down ? above : below;
      for (const layer of down ? layers : [...layers].reverse()) {
        const wished = layer.map((item) => mean(near[item], position, position[item]));
        spread(layer, wished, gapX, position);
      }
    }
    return Array.from(position, (x, item) => ({ x, y: rank[item] * gapY }));
  }

  return { place };
})();
