"use strict";

/* Which nodes are shown, and which are folded into another. Knows nothing of how anything looks.

   Two things fold. A run: the inside of a stretch without forks or joins becomes one item, which opens in pieces if it
   is long. And a subtree: whatever can be reached only through a closed node hides behind it. Since hidden nodes stand
   behind one that came before them, an edge between items always leads from earlier to later. */

const Folding = (() => {
  const OPENS_AT_ONCE = 60;
  const SMALLEST_PIECE = 20;

  /** Insides of the longest stretches in which each node is the only child of its only parent. */
  function runsOf(nodes) {
    const follows = (child) => child.parents.length === 1 && nodes[child.parents[0]].children.length === 1;
    const runs = [];
    for (const node of nodes) {
      if (follows(node)) continue;
      const stretch = [node.index];
      let last = node;
      while (last.children.length === 1 && follows(nodes[last.children[0]])) {
        last = nodes[last.children[0]];
        stretch.push(last.index);
      }
      if (stretch.length >= 4) runs.push(stretch.slice(1, -1));
    }
    return runs;
  }

  class Folds {
    constructor(nodes) {
      this.nodes = nodes;
      this.runs = runsOf(nodes);
      this.closed = new Set();
      this.runOf = new Int32Array(nodes.length).fill(-1);
      this.placeInRun = new Int32Array(nodes.length);
      this.runs.forEach((run, number) =>
        run.forEach((at, place) => {
          this.runOf[at] = number;
          this.placeInRun[at] = place;
        }),
      );
      this.pieces = [];
      this.unfoldAll();
    }

    foldRuns() {
      this.pieces = this.runs.map((run) => [{ from: 0, to: run.length, folded: true }]);
    }

    unfoldAll() {
      this.closed.clear();
      this.pieces = this.runs.map((run) => [{ from: 0, to: run.length, folded: false }]);
    }

    /** Fold the whole run that a node belongs to. */
    foldRun(at) {
      const run = this.runOf[at];
      if (run >= 0) this.pieces[run] = [{ from: 0, to: this.runs[run].length, folded: true }];
    }

    pieceOf(at) {
      const run = this.runOf[at];
      if (run < 0) return undefined;
      const place = this.placeInRun[at];
      return this.pieces[run].find((piece) => piece.from <= place && place < piece.to);
    }

    /** Open the folded piece that a node is in: all of it, or into smaller pieces if that would be many nodes. */
    openPiece(at) {
      const piece = this.pieceOf(at);
      if (!piece || !piece.folded) return;
      const length = piece.to - piece.from;
      if (length <= OPENS_AT_ONCE) {
        piece.folded = false;
        return;
      }
      const size = Math.max(SMALLEST_PIECE, Math.ceil(Math.sqrt(length)));
      const smaller = [];
      for (let from = piece.from; from < piece.to; from += size) {
        const to = Math.min(from + size, piece.to);
        smaller.push({ from, to, folded: to - from > 1 });
      }
      const all = this.pieces[this.runOf[at]];
      all.splice(all.indexOf(piece), 1, ...smaller);
    }

    toggleSubtree(at) {
      if (!this.closed.delete(at) && this.nodes[at].children.length) this.closed.add(at);
    }

    hidden() {
      const hidden = new Uint8Array(this.nodes.length);
      if (this.closed.size) {
        for (const { index, parents } of this.nodes) {
          if (parents.length && parents.every((parent) => hidden[parent] || this.closed.has(parent))) hidden[index] = 1;
        }
      }
      return hidden;
    }

    /** Open whatever hides a node. */
    reveal(at) {
      while (this.hidden()[at]) {
        let above = at;
        while (!this.closed.has(above)) above = this.nodes[above].parents[0];
        this.closed.delete(above);
      }
      while (this.pieceOf(at)?.folded) this.openPiece(at);
    }

    /** {items, edges, itemOf}: what is to be drawn. An item is a node or the members of a run, and what it hides. */
    view() {
      const hidden = this.hidden();
      const items = [];
      const itemOf = new Int32Array(this.nodes.length);
      const started = new Map();
      for (const { index, parents } of this.nodes) {
        if (hidden[index]) {
          itemOf[index] = itemOf[parents[0]];
          items[itemOf[index]].behind.push(index);
          continue;
        }
        const piece = this.pieceOf(index);
        if (piece?.folded && started.has(piece)) {
          itemOf[index] = started.get(piece);
          items[itemOf[index]].members.push(index);
          continue;
        }
        itemOf[index] = items.length;
        const run = piece?.folded === true;
        if (run) started.set(piece, items.length);
        // A piece may shrink or grow by what is hidden, or be cut anew: its name must not be taken for the old one's.
        const key = run ? `r${index}-${piece.to}` : `n${index}`;
        items.push({ key, first: index, run, members: [index], behind: [], closed: this.closed.has(index) });
      }
      const edges = new Map();
      for (const { index, parents } of this.nodes) {
        if (hidden[index]) continue;
        for (const parent of parents) {
          const [from, to] = [itemOf[parent], itemOf[index]];
          if (from !== to) edges.set(from * items.length + to, [from, to]);
        }
      }
      return { items, edges: [...edges.values()], itemOf };
    }
  }

  return { Folds };
})();
