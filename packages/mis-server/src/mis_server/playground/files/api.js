// Requests to the server that this page came from. The key lives in the page's input field and goes nowhere else.

import { byId } from "./dom.js";

/** What the server, or the way to it, answered in place of a reply. */
export class Refusal extends Error {
  constructor(status, { code, message, param } = {}, retryAfter = null) {
    super(message ?? (status ? "The answer does not say why." : "The server cannot be reached."));
    Object.assign(this, { status, code, param, retryAfter });
  }
}

/** The key as it is typed now; empty: none. */
export const typedKey = () => byId("key").value.trim();

/** The address of a route, beside this page, so that it works behind a proxy that adds a prefix. */
export const addressOf = (route) => new URL(route, document.baseURI.split("#")[0]).href;

/** GET a route. */
export const get = async (route) => (await ask(route, {})).reply;

/** POST a body; gives the reply, the milliseconds of its stages by name, and those that passed here. */
export async function post(route, body, signal) {
  const headers = { "content-type": "application/json" };
  return ask(route, { method: "POST", headers, body: JSON.stringify(body), signal });
}

/** POST a body whose reply is server-sent events; calls `told` with each, and gives the milliseconds as `post` does. */
export async function stream(route, body, signal, told) {
  const headers = { "content-type": "application/json" };
  const began = performance.now();
  const response = await reach(route, { method: "POST", headers, body: JSON.stringify(body), signal });
  if (!response.ok) throw await refusalOf(response);
  let unread = "";
  for await (const text of pieces(response.body.pipeThrough(new TextDecoderStream()))) {
    const events = (unread + text).split("\n\n");
    unread = events.pop();
    for (const event of events.map((each) => each.replace("data: ", "")).filter((each) => each !== "[DONE]")) {
      const said = JSON.parse(event);
      if (said.error) throw new Refusal(response.status, said.error);
      told(said);
    }
  }
  return { stages: stagesOf(response.headers.get("server-timing") ?? ""), elapsed: performance.now() - began };
}

async function* pieces(readable) { // not every browser can iterate over a stream
  const reader = readable.getReader();
  try {
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) yield piece.value;
  } finally {
    reader.cancel().catch(() => null);
  }
}

async function ask(route, options) {
  const began = performance.now();
  const response = await reach(route, options);
  if (!response.ok) throw await refusalOf(response);
  const reply = await response.json().catch(() => ({}));
  return { reply, stages: stagesOf(response.headers.get("server-timing") ?? ""), elapsed: performance.now() - began };
}

async function refusalOf(response) {
  const reply = await response.json().catch(() => ({}));
  return new Refusal(response.status, reply.error ?? detailOf(reply.detail), response.headers.get("retry-after"));
}

/** What is wrong, as System One says it. */
function detailOf(detail) {
  const [fault] = Array.isArray(detail) ? detail : [detail];
  return fault && { code: fault.type ?? fault.code, message: fault.msg ?? fault.message, param: fault.loc?.[1] };
}

function reach(route, options) {
  const headers = { ...options.headers };
  if (typedKey()) headers.authorization = `Bearer ${typedKey()}`;
  return fetch(addressOf(route), { ...options, headers }).catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, { message: error instanceof TypeError && typedKey() && !isLatin(typedKey())
      ? "The key has characters that no header can carry." : undefined });
  });
}

function stagesOf(header) {
  const found = [...header.matchAll(/([\w-]+);dur=([\d.]+)/g)];
  return Object.fromEntries(found.map(([, name, milliseconds]) => [name, Number(milliseconds)]));
}

const isLatin = (text) => [...text].every((character) => character.codePointAt(0) < 256);
