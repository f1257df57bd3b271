// The request as it is sent, as curl and as Python.

import { addressOf } from "./api.js";
import { byId, element } from "./dom.js";

const VARIABLE = "MIS_API_KEY";

/** Show both; `key` is "" for none, and is only written out if `withKey`. */
export function showSnippets(into, route, body, key, withKey) {
  const texts = { curl: curl(addressOf(route), body, key, withKey), Python: python(addressOf(route), body, key, withKey) };
  into.replaceChildren(...Object.entries(texts).map(([name, text]) => snippet(name, text)));
}

function snippet(name, text) {
  const copy = element("button", { type: "button", textContent: "Copy", aria: { label: `Copy ${name}` } });
  const code = element("pre", { tabIndex: 0, aria: { label: name }, data: { language: name } }, text);
  copy.addEventListener("click", () => copyText(code, text));
  return element("div", { className: "snippet" }, element("p", {}, element("strong", {}, name), copy), code);
}

async function copyText(code, text) {
  try {
    await navigator.clipboard.writeText(text); // only on secure origins, which localhost is
    byId("status").textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(code);
    byId("status").textContent = "Selected; copy it with Ctrl C.";
  }
}

function curl(address, body, key, withKey) {
  const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
  const bearer = withKey ? quoted(`authorization: Bearer ${key}`) : `"authorization: Bearer $${VARIABLE}"`;
  const parts = [quoted(address), "-H 'content-type: application/json'", ...(key ? [`-H ${bearer}`] : [])];
  return `curl ${parts.join(" \\\n  ")} \\\n  -d ${quoted(JSON.stringify(body, null, 2))}`;
}

function python(address, body, key, withKey) {
  const bearer = withKey ? `"Bearer " + ${literal(key)}` : `"Bearer " + os.environ["${VARIABLE}"]`;
  const headers = key ? `\n    headers={"authorization": ${bearer}},` : "";
  return `${key && !withKey ? "import os\n\n" : ""}import httpx

reply = httpx.post(
    ${literal(address)},
    json=${literal(body, "    ")},${headers}
    timeout=600,
)
reply.raise_for_status()
print(reply.json())`;
}

/** A JSON value as Python writes it. */
function literal(value, indent = "") {
  if (typeof value === "boolean") return value ? "True" : "False";
  if (value === null) return "None";
  if (typeof value !== "object") return JSON.stringify(value); // texts and numbers are written alike in both
  const inner = `${indent}    `;
  const isList = Array.isArray(value);
  const parts = Object.entries(value).map(([name, each]) =>
    `${inner}${isList ? "" : `${JSON.stringify(name)}: `}${literal(each, inner)},\n`);
  const [open, close] = isList ? "[]" : "{}";
  return parts.length ? `${open}\n${parts.join("")}${indent}${close}` : open + close;
}
