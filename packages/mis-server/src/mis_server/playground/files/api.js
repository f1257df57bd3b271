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

async function ask(route, options) {
  const headers = { ...options.headers };
  if (typedKey()) headers.authorization = `Bearer ${typedKey()}`;
  const began = performance.now();
  const response = await fetch(addressOf(route), { ...options, headers }).catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, { message: error instanceof TypeError && typedKey() && !isLatin(typedKey())
      ? "The key has characters that no header can carry." : undefined });
  });
  const reply = await response.json().catch(() => ({}));
  const elapsed = performance.now() - began;
  if (!response.ok) throw new Refusal(response.status, reply.error, response.headers.get("retry-after"));
  return { reply, stages: stagesOf(response.headers.get("server-timing") ?? ""), elapsed };
}

function stagesOf(header) {
  const found = [...header.matchAll(/([\w-]+);dur=([\d.]+)/g)];
  return Object.fromEntries(found.map(([, name, milliseconds]) => [name, Number(milliseconds)]));
}

const isLatin = (text) => [...text].every((character) => character.codePointAt(0) < 256);
