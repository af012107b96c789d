"use strict";

/* What the graph's JSON says, as numbered nodes. Knows the format; knows nothing of pictures or of the page.

   Whatever comes from the file is a value here, never a key of an object and never code: ids live in Maps, and nodes
   are known by their numbers everywhere else. A file that is wrong in places is shown as far as it can be. */

const Reading = (() => {
  const LONG_NUMBER = /[:[,]-?[0-9]{16}/;
  const UNSEEN = /[\p{Cc}\p{Cf}\p{Cn}\p{Cs}\p{Zl}\p{Zp}]+/gu;
  /** Controls, marks of direction, halves of characters and what is none. */
  const PILES = /\p{M}{3,}/gu;
  const PICTURES = new Map([
    ["image/png", "iVBORw0KGgo"],
    ["image/jpeg", "/9j/"],
    ["image/gif", "R0lGOD"],
    ["image/webp", "UklGR"],
  ]);
  /** Media types that are shown, and how such a file begins in base64. */
  const BASE64 = /^(?:[A-Za-z0-9+/]{4})+(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/;
  const WORDS = 60;

  // Values

  /** JSON with its long numbers kept digit by digit, where the browser can do that. */
  function parsed(text) {
    if (!JSON.rawJSON || !LONG_NUMBER.test(text)) return JSON.parse(text);
    const exact = (key, value, context) =>
      typeof value === "number" && context.source.length > 15 && String(value) !== context.source
        ? JSON.rawJSON(context.source)
        : value;
    try {
      return JSON.parse(text, exact);
    } catch {
      return JSON.parse(text); // nested too deeply for the exact way
    }
  }

  function isObject(value) {
    return typeof value === "object" && value !== null && !Array.isArray(value);
  }

  function objectOf(value) {
    return isObject(value) ? value : {};
  }

  function listOf(value) {
    return Array.isArray(value) ? value : [];
  }

  function numberOf(...values) {
    return values.find((value) => typeof value === "number" && Number.isFinite(value));
  }

  function textOf(value) {
    if (typeof value === "string") return value;
    if (value === undefined || value === null) return "";
    try {
      return JSON.stringify(value, null, 2);
    } catch {
      return "(nested too deeply to be shown)";
    }
  }

  function isNothing(value) {
    if (value === undefined || value === null || value === "" || value === false) return true;
    return typeof value === "object" && Object.keys(value).length === 0;
  }

  /** The fields that nothing has shown yet, as one more piece; or none. */
  function remainder(object, ...shown) {
    const rest = Object.entries(object).filter(([key, value]) => !shown.includes(key) && !isNothing(value));
    return rest.length ? [{ title: "other fields", text: textOf(Object.fromEntries(rest)), minor: true }] : [];
  }

  /** One line without anything that could disturb its neighbours, at most `width` narrow characters. */
  function brief(text, width = WORDS) {
    const line = text.slice(0, 12 * width).replace(UNSEEN, " ").replace(PILES, "").replace(/\s+/gu, " ").trim();
    let room = width;
    let kept = "";
    for (const character of line) {
      room -= character.codePointAt(0) >= 0x1100 ? 2 : 1;
      if (room < 0) return `${kept.trimEnd()}…`;
      kept += character;
    }
    return kept;
  }

  // Content, as pieces: {title, text, minor?, error?, picture?}

  function partsOf(content) {
    if (typeof content === "string") return content === "" ? [] : [{ title: "text", text: content }];
    if (!Array.isArray(content)) return isNothing(content) ? [] : [{ title: "content", text: textOf(content) }];
    return content.flatMap((part) => (isObject(part) ? pieces(part) : [{ title: "content", text: textOf(part) }]));
  }

  function pieces(part) {
    const type = part.type;
    if (type === "text") {
      return [{ title: "text", text: textOf(part.text) }, ...remainder(part, "type", "text")];
    }
    if (type === "thinking") {
      const text = part.redacted === true && !part.thinking ? "(withheld by the vendor)" : textOf(part.thinking);
      return [{ title: "thinking", text }, ...remainder(part, "type", "thinking")];
    }
    if (type === "tool_call") {
      const text = part.invalid_arguments ? textOf(part.invalid_arguments) : textOf(part.arguments ?? {});
      const call = { title: `call of ${textOf(part.name)}`, text };
      return [call, ...remainder(part, "type", "name", "arguments", "invalid_arguments")];
    }
    if (type === "tool_result") {
      const error = part.is_error === true;
      const title = `${error ? "error" : "result"} of ${textOf(part.name ?? part.tool_call_id)}`;
      const inner = partsOf(part.content).map((piece) => ({
        ...piece,
        title: piece.title === "text" ? title : `${title}: ${piece.title}`,
        error,
      }));
      const first = inner.length ? inner : [{ title, text: "", error }];
      return [...first, ...remainder(part, "type", "name", "content", "is_error")];
    }
    if (type === "image" || type === "image_url") {
      return [pictureOf(part), ...remainder(part, "type", "image_url", "image_data", "url", "data", "media_type")];
    }
    if (type === "document" || type === "audio") {
      return [fileOf(part), ...remainder(part, "type", "text", "url", "data", "title", "media_type")];
    }
    if (type === "code") return [{ title: `code ${textOf(part.language)}`.trim(), text: textOf(part.code) }];
    if (type === "refusal") return [{ title: "refusal", text: textOf(part.refusal) }];
    if (type === "diff") {
      const language = textOf(part.language);
      return [
        { title: `before ${language}`.trim(), text: textOf(part.old_code) },
        { title: `after ${language}`.trim(), text: textOf(part.new_code) },
      ];
    }
    return [{ title: textOf(type) || "content", text: textOf(part) }];
  }

  /** A picture carried by value can be shown. One that has an address is never fetched: its address is. */
  function pictureOf(part) {
    const address = part.image_url ?? part.url;
    if (!isNothing(address)) return { title: "image by address (not loaded)", text: textOf(address) };
    const data = part.image_data ?? part.data;
    const media = part.media_type || "image/png";
    const size = typeof data === "string" ? `${Math.floor((data.length * 3) / 4)} bytes` : "no data";
    const piece = { title: "image", text: `${textOf(media)}, ${size}` };
    if (typeof data === "string" && PICTURES.has(media) && data.startsWith(PICTURES.get(media)) && BASE64.test(data)) {
      piece.picture = `data:${media};base64,${data}`;
    }
    return piece;
  }

  function fileOf(part) {
    const title = [textOf(part.type), textOf(part.title)].filter(Boolean).join(" ");
    if (!isNothing(part.text)) return { title, text: textOf(part.text) };
    if (!isNothing(part.url)) return { title: `${title} by address (not loaded)`, text: textOf(part.url) };
    const size = typeof part.data === "string" ? `${Math.floor((part.data.length * 3) / 4)} bytes` : "no data";
    return { title, text: [textOf(part.media_type), size].filter(Boolean).join(", ") };
  }

  function toolPieces(tool) {
    if (!isObject(tool)) return [{ title: "tool", text: textOf(tool) }];
    const description = { title: `tool ${textOf(tool.name)}`, text: textOf(tool.description) };
    const parameters = tool.parameters ?? tool.input_schema;
    const schema = isNothing(parameters) ? [] : [{ title: "parameters", text: textOf(parameters), minor: true }];
    return [description, ...schema, ...remainder(tool, "name", "description", "parameters", "input_schema")];
  }

  /** Everything that a node says, piece by piece. Made when somebody looks: most nodes are never opened. */
  function contentOf(node) {
    const data = node.data;
    if (data.role !== undefined) {
      return [...partsOf(data.content), ...remainder(data, "role", "content", "usage", "model", "provider")];
    }
    if (data.type === "system_prompt") return [...partsOf(data.content), ...remainder(data, "type", "content")];
    if (data.type === "tool_definitions") {
      return [...listOf(data.tools).flatMap(toolPieces), ...remainder(data, "type", "tools")];
    }
    if (data.type === "tool_execution") {
      const error = data.is_error === true;
      const result = partsOf(data.result).map((piece) => ({ ...piece, error }));
      return [...result, ...remainder(data, "type", "tool_name", "result", "is_error")];
    }
    if (data.type === "stop_reason") {
      return [{ title: "reason", text: textOf(data.reason) }, ...remainder(data, "type", "reason", "usage")];
    }
    return [{ title: textOf(data.type) || "content", text: textOf(data) }];
  }

  // Nodes

  function kindOf(data) {
    if (data.role !== undefined) return data.role === "tool" ? "tool result" : brief(textOf(data.role), 20);
    if (data.type === "system_prompt") return "system";
    if (data.type === "tool_definitions") return "tools";
    if (data.type === "tool_execution") {
      return `${data.is_error === true ? "failed" : "ran"} ${brief(textOf(data.tool_name), 18)}`;
    }
    if (data.type === "stop_reason") return "stop";
    return brief(textOf(data.type), 20) || "unknown";
  }

  /** The model's side, or ours: prompts, tools, users and whatever tools did. */
  function sideOf(data) {
    return data.role === "assistant" || data.type === "stop_reason" ? "assistant" : "user";
  }

  /** How a node begins, from as little of it as will do. */
  function wordsOf(data) {
    if (data.type === "tool_definitions" && data.role === undefined) {
      return brief(listOf(data.tools).map((tool) => textOf(objectOf(tool).name)).join(", "));
    }
    if (data.type === "stop_reason" && data.role === undefined) return brief(textOf(data.reason));
    const content = data.role === undefined && data.type === "tool_execution" ? data.result : data.content;
    if (typeof content === "string") return brief(content);
    const parts = listOf(content);
    const thinks = (part) => objectOf(part).type === "thinking";
    for (const part of [...parts.filter((part) => !thinks(part)), ...parts.filter(thinks)]) {
      const [piece] = isObject(part) ? pieces(part) : [{ text: textOf(part) }];
      const words = brief(part?.type === "tool_call" ? piece.title : piece.text);
      if (words) return words;
    }
    return "";
  }

  /** Token counts in either vocabulary: the prompt with what came from a cache, and what was written. */
  function tokensOf(usage) {
    const cached = (numberOf(usage.cache_read_input_tokens) ?? 0) + (numberOf(usage.cache_creation_input_tokens) ?? 0);
    const uncached = numberOf(usage.input_tokens);
    return {
      input: numberOf(usage.prompt_tokens) ?? (uncached === undefined ? undefined : uncached + cached),
      output: numberOf(usage.completion_tokens, usage.output_tokens),
    };
  }

  function nodeOf(row, index) {
    const data = objectOf(row.data);
    const metadata = objectOf(row.metadata);
    const usage = !isNothing(metadata.usage) ? objectOf(metadata.usage) : objectOf(data.usage);
    return {
      index,
      id: textOf(row.id),
      parents: [],
      children: [],
      missing: [],
      data,
      metadata,
      usage,
      kind: kindOf(data),
      side: sideOf(data),
      words: wordsOf(data),
      tokens: tokensOf(usage),
      cost: numberOf(metadata.cost, usage.billed),
      latency: numberOf(metadata.latency_ms, metadata.duration_ms),
      time: numberOf(row.timestamp),
      model: textOf(metadata.model ?? data.model),
      provider: textOf(metadata.provider ?? data.provider),
      extra: remainder(row, "id", "parents", "timestamp", "metadata", "data"),
    };
  }

  /** Rows in an order where parents come first; of a circle, which no graph of ours has, some order. */
  function causal(rows, places) {
    const waiting = rows.map((row, at) => {
      const parents = listOf(row.parents).map((id) => places.get(textOf(id)));
      return new Set(parents.filter((parent) => parent !== undefined && parent !== at));
    });
    const followers = rows.map(() => []);
    waiting.forEach((parents, at) => parents.forEach((parent) => followers[parent].push(at)));
    if (waiting.every((parents, at) => [...parents].every((parent) => parent < at))) return rows;
    const order = rows.map((_, at) => at).filter((at) => waiting[at].size === 0);
    for (let next = 0; next < order.length; next++) {
      for (const follower of followers[order[next]]) {
        waiting[follower].delete(order[next]);
        if (waiting[follower].size === 0) order.push(follower);
      }
    }
    const placed = new Set(order);
    return [...order, ...rows.map((_, at) => at).filter((at) => !placed.has(at))].map((at) => rows[at]);
  }

  function numbered(rows) {
    const places = new Map();
    rows.forEach((row, at) => {
      const id = textOf(row.id);
      if (!places.has(id)) places.set(id, at);
    });
    return places;
  }

  /** The whole graph: {nodes, heads}, heads as numbers. */
  function graphOf(text) {
    const file = objectOf(parsed(text));
    let rows = listOf(file.nodes).filter(isObject);
    rows = causal(rows, numbered(rows));
    const places = numbered(rows);
    const nodes = rows.map(nodeOf);
    rows.forEach((row, at) => {
      for (const id of new Set(listOf(row.parents).map(textOf))) {
        const parent = places.get(id);
        if (parent !== undefined && parent < at) {
          nodes[at].parents.push(parent);
          nodes[parent].children.push(at);
        } else {
          nodes[at].missing.push(id);
        }
      }
    });
    const named = listOf(file.heads).map((id) => places.get(textOf(id))).filter((at) => at !== undefined);
    const leaves = nodes.filter((node) => node.children.length === 0).map((node) => node.index);
    return { nodes, heads: [...new Set(named.length ? named : leaves)] };
  }

  // Branches

  /** The numbers of a node and of all that came before it, oldest first. */
  function branchOf(nodes, head) {
    const seen = new Uint8Array(nodes.length);
    const waiting = [head];
    seen[head] = 1;
    while (waiting.length) {
      for (const parent of nodes[waiting.pop()].parents) {
        if (!seen[parent]) {
          seen[parent] = 1;
          waiting.push(parent);
        }
      }
    }
    const branch = [];
    for (let at = 0; at <= head; at++) if (seen[at]) branch.push(at);
    return branch;
  }

  /** Sums over nodes. What a stop repeats about the whole run counts only where the turns themselves do not say. */
  function totalsOf(nodes, members) {
    const sums = { nodes: members.length, input: 0, output: 0, cost: undefined, latency: undefined, span: undefined };
    const counted = members.map((at) => nodes[at]);
    const said = (node) => node.tokens.input !== undefined || node.tokens.output !== undefined;
    const turns = counted.filter((node) => node.data.type !== "stop_reason");
    let first = Infinity;
    let last = -Infinity;
    for (const node of turns.some(said) ? turns : counted) {
      sums.input += node.tokens.input ?? 0;
      sums.output += node.tokens.output ?? 0;
    }
    for (const node of counted) {
      if (node.cost !== undefined) sums.cost = (sums.cost ?? 0) + node.cost;
      if (node.latency !== undefined) sums.latency = (sums.latency ?? 0) + node.latency;
      if (node.time !== undefined) {
        first = Math.min(first, node.time);
        last = Math.max(last, node.time);
      }
    }
    if (last >= first) sums.span = (last - first) * 1000;
    return sums;
  }

  // Words for numbers

  function money(cost) {
    if (cost === undefined) return "";
    if (cost === 0) return "$0";
    return `$${Math.abs(cost) >= 1 ? cost.toFixed(2) : String(Number(cost.toPrecision(4)))}`;
  }

  function duration(milliseconds) {
    if (milliseconds === undefined) return "";
    if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
    const seconds = milliseconds / 1000;
    if (seconds < 60) return `${seconds.toFixed(1)} s`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
    if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
    return `${Math.round(seconds / 86400)} days`;
  }

  function count(number) {
    return String(number).replace(/\B(?=([0-9]{3})+$)/g, ",");
  }

  function instant(seconds) {
    const date = new Date(seconds * 1000);
    return Number.isNaN(date.getTime()) ? String(seconds) : date.toISOString().replace("T", " ");
  }

  /** Everything in a node that a search may look for. */
  function haystack(node) {
    const content = contentOf(node).flatMap((piece) => [piece.title, piece.text]);
    return [node.kind, node.id, node.model, node.provider, ...content, textOf(node.metadata)].join("\n");
  }

  const words = { brief, textOf, isNothing, money, duration, count, instant };
  return { graphOf, contentOf, branchOf, totalsOf, haystack, ...words };
})();
