// The page: what happens when something is typed, chosen or sent.

import { get, post, Refusal, stream, typedKey } from "./api.js";
import { beginTurn, forget, showTurns } from "./chat.js";
import { showCosts } from "./costs.js";
import { byId } from "./dom.js";
import { showTokens } from "./labels.js";
import { describe, fieldsOf, makeTables, optionsOf } from "./options.js";
import { fileOf, runOf, runsOf, showRuns } from "./replay.js";
import { showOutcomes } from "./results.js";
import { showSnippets } from "./snippets.js";
import { fill, fromAddress, read, toAddress } from "./state.js";
import { makeTabs } from "./tabs.js";
import { TASKS } from "./tasks.js";

const form = byId("request");
let task = "score";
let fields = {}; // of the bodies of the tasks, as far as the server says
let runs = [];
let underWay = null;

const choose = makeTabs(byId("tabs"), (chosen) => {
  task = chosen;
  showParts();
  underWay?.abort();
  for (const id of ["results", "costs", "error", "status"]) byId(id).replaceChildren(); // of the other task
  if (task === "chat") showTurns(byId("results"));
  changed();
});

/** Show what is for the chosen task, and nothing else. */
function showParts() {
  for (const part of document.querySelectorAll("[data-for]")) {
    part.hidden = !part.dataset.for.split(" ").includes(task);
    if (part.tagName === "FIELDSET") part.disabled = part.hidden; // or what is wrong in it would hinder sending
  }
  byId("more").hidden = !(task in fields);
  describe(form, fields[task] ?? {});
}

function changed() {
  keep();
  if (task === "score") showTokens(byId("label-tokens"), TASKS.score.request(read(form, task)).labels);
}

/** Keep what is typed in the address, and show it as code. */
function keep() {
  const state = read(form, task);
  if (!toAddress(state)) byId("status").textContent = "Too long to be kept in the address.";
  showSnippets(byId("snippets"), TASKS[task].route, requestOf(state), typedKey(), byId("with-key").checked);
  byId("with-key").parentElement.hidden = !typedKey();
  const set = Object.keys(optionsOf(task)).length;
  byId("options-set").textContent = set ? `· ${set} set` : "";
}

const requestOf = (state) => ({ ...TASKS[task].request(state), ...optionsOf(task) });

function restore() {
  const state = fromAddress();
  fill(form, state);
  choose(state.task in TASKS ? state.task : "score");
}

async function showModel() {
  try {
    const { data: [model] } = await get("v1/models");
    byId("model").textContent = model.id;
    for (const tab of byId("tabs").children) tab.classList.toggle("is-missing", !model.tasks.includes(tab.dataset.needs ?? tab.dataset.task));
  } catch (error) {
    byId("model").textContent = error.status === 401 ? "This server wants an API key." : "";
  }
}

/** Offer the fields that the form has no place for, if the server says what they are. */
async function showOptions() {
  fields = await get("openapi.json").then(fieldsOf, () => ({})); // a server with a key says it only to those who have it
  const state = read(form, task);
  makeTables(byId("options"), fields, state);
  fill(byId("options"), state);
  showParts();
  keep();
}

/** Do something that asks the server, one at a time, and show what goes wrong. */
async function during(text, work) {
  underWay?.abort();
  const controller = underWay = new AbortController();
  byId("status").textContent = text;
  byId("error").replaceChildren();
  try {
    await work(controller.signal);
    byId("status").textContent = "";
  } catch (error) {
    if (controller.signal.aborted) return;
    byId("status").textContent = "";
    byId("error").textContent = told(error);
    if (!(error instanceof Refusal)) throw error;
  }
  const reply = byId("reply");
  if (reply.getBoundingClientRect().top > innerHeight) reply.scrollIntoView(); // on a phone it is below the form
}

function told({ status, code, message, retryAfter }) {
  const wait = retryAfter ? ` Try again in ${retryAfter} s.` : "";
  return `${status ? `${status} ${code ?? ""}: ` : ""}${message}${wait}`;
}

function send() {
  const state = read(form, task);
  const { route, outcomes, order } = TASKS[task];
  return during("Sent…", async (signal) => {
    const answer = await post(route, requestOf(state), signal);
    showOutcomes(byId("results"), outcomes(state, answer.reply), order(state));
    showCosts(byId("costs"), answer.reply.usage, answer.stages, answer.elapsed);
    show(answer.reply.layout ? [runOf(answer)] : []);
  });
}

/** Send a message, and show the answer as it is written. */
function converse() {
  const state = read(form, "chat");
  const body = { ...requestOf(state), ...TASKS.chat.streaming };
  return during("Writing…", async (signal) => {
    const turn = beginTurn(byId("results"), state);
    let usage = null;
    try {
      const { elapsed } = await stream(TASKS.chat.route, body, signal, (event) => {
        if (event.usage) usage = event.usage;
        for (const { delta, logprobs } of event.choices) turn.add(delta.content ?? "", logprobs?.content ?? []);
      });
      showCosts(byId("costs"), usage, {}, elapsed, usage.completion_tokens); // its stages are those before the first token
    } finally {
      turn.end();
      changed(); // the code is that of the next turn
      form.elements.message.select();
    }
  });
}

/** Have the score request laid out both ways, each with a cache of its own, so that both begin with nothing. */
function compare() {
  if (!form.reportValidity()) return;
  const body = requestOf(read(form, "score"));
  const salt = crypto.getRandomValues(new Uint32Array(2)).join("-");
  return during("Comparing…", async (signal) => {
    const found = [];
    for (const scoring_algorithm of ["packed", "prefill_extend"]) {
      const cache_salt = `playground-${salt}-${scoring_algorithm}`;
      found.push(runOf(await post(TASKS.score.route, { ...body, scoring_algorithm, cache_salt }, signal)));
    }
    show(found);
  }).then(() => {
    const isRefused = byId("error").textContent.includes("unknown_parameter");
    byId("layout-note").textContent = isRefused ? "Only a server started with --enable-request-layout compares." : "";
  });
}

function show(shown) {
  runs = shown;
  byId("save").disabled = !runs.length;
  byId("layout-note").textContent = "";
  if (runs.length) showRuns(byId("runs"), runs);
  else byId("runs").replaceChildren();
}

function save() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([fileOf(runs)], { type: "application/json" }));
  link.download = "layouts.json";
  link.click();
  URL.revokeObjectURL(link.href);
}

async function open({ target }) {
  try {
    show(runsOf(await target.files[0].text()));
  } catch (error) {
    byId("layout-note").textContent = error.message;
  }
  target.value = ""; // so that the same file can be opened again
}

form.addEventListener("input", changed);
form.addEventListener("submit", (event) => { event.preventDefault(); (task === "chat" ? converse : send)(); });
form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
byId("key").addEventListener("input", changed);
byId("key").addEventListener("change", () => { showModel(); showOptions(); });
byId("more").addEventListener("invalid", (event) => {
  event.preventDefault(); // what is wrong stands beside it, where a bubble would hide that
  byId("more").open = true;
  byId("more").querySelector("[name]:invalid").focus();
}, true);
byId("compare").addEventListener("click", compare);
byId("save").addEventListener("click", save);
byId("open").addEventListener("change", open);
byId("stop").addEventListener("click", () => { underWay?.abort(); byId("status").textContent = "Stopped."; });
byId("forget").addEventListener("click", () => { underWay?.abort(); forget(); choose("chat"); });
addEventListener("hashchange", restore);
show([]);
restore();
showModel();
showOptions();
