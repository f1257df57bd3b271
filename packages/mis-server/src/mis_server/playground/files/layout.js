// A layout as the server says it (`return_layout`), read from a reply or a file, and what its parts see.

const COUNTS = ["steps", "cached_tokens", "query_tokens"];
const PLACED = ["step", "shard", "row", "tokens", "context_tokens"];
const isCount = (value) => Number.isInteger(value) && value >= 0;

/** Give the layout if it is one, or throw an error for people. */
export function checkedLayout(layout) {
  const isOne = layout && typeof layout.algorithm === "string" && COUNTS.every((name) => isCount(layout[name]))
    && Array.isArray(layout.placements) && layout.placements.every((placement) =>
      placement && PLACED.every((name) => isCount(placement[name])) && placement.step < layout.steps
      && (placement.item === null || isCount(placement.item)));
  if (!isOne) throw new Error("This is no layout of a request.");
  return layout;
}

/** Whether a placement is among what another one sees: tokens of the query, or earlier ones of the same item. */
export function isSeen(placement, by) {
  const isEarlier = placement.context_tokens < by.context_tokens;
  return isEarlier && placement !== by && (placement.item === null || placement.item === by.item);
}

/** Tokens of the query that are in the KV cache when a step ends; before the first one, with step -1. */
export function cachedAfter(layout, step) {
  const computed = layout.placements.filter((placement) => placement.item === null && placement.step <= step);
  return computed.reduce((most, { context_tokens, tokens }) => Math.max(most, context_tokens + tokens),
    layout.cached_tokens);
}

/** What a placement is, in a sentence. */
export function described({ step, item, tokens, context_tokens: context }) {
  const count = (number) => `${number} token${number === 1 ? "" : "s"}`;
  const what = item === null ? "The query" : `Item ${item + 1}`;
  const sees = context ? `behind ${count(context)} in the KV cache` : "with nothing before";
  return `${what} in step ${step + 1}: ${count(tokens)}, ${sees}.`;
}

/** Rows that the fullest step uses, or tokens of the query if there are more. */
export const widthOf = (layout) => layout.placements.reduce(
  (most, { row, tokens }) => Math.max(most, row + tokens), Math.max(layout.query_tokens, 1));
