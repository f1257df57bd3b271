// The tokens of each label, asked of the server a moment after the last key.

import { post } from "./api.js";
import { element } from "./dom.js";

const PAUSE = 300; // milliseconds
const MOST = 20; // labels

let waiting;

/** Show the tokens of labels in a list, soon; a newer call replaces an older one. */
export function showTokens(list, labels) {
  clearTimeout(waiting?.timer);
  waiting?.controller.abort();
  const controller = new AbortController();
  const timer = setTimeout(() => ask(list, labels.slice(0, MOST), controller.signal), PAUSE);
  waiting = { timer, controller };
}

async function ask(list, labels, signal) {
  const body = (prompt) => ({ prompt, add_special_tokens: false });
  try {
    const chips = [];
    for (const label of labels) { // one after the other, as each takes one of the server's places
      const { reply } = await post("tokenize", body(label), signal);
      chips.push(chip(label, reply.tokens));
    }
    list.replaceChildren(...chips);
  } catch {
    if (!signal.aborted) list.replaceChildren(); // sending the request will say what is wrong
  }
}

const chip = (label, ids) => element("li", { title: `${ids.length} of the vocabulary's tokens` },
  element("code", {}, visible(label)), " ", ids.join(" "));

/** A text whose outer spaces can be seen. */
export const visible = (text) => text.replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length));
