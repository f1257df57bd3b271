// Layouts below each other, to one scale, replayed step by step; saved to a file, and opened again.

import { element } from "./dom.js";
import { checkedLayout, widthOf } from "./layout.js";
import { drawTimeline } from "./timeline.js";

const FORMAT = "mis-layouts-1";
const PAUSE = 900; // milliseconds from step to step
const NAMES = { packed: "Packed", prefill_extend: "Prefill and extend", serial: "Serial" };

/** A run: one request's layout, how many items it had, and milliseconds from its first step to its last value. */
export const runOf = ({ reply: { layout }, stages }) => ({
  layout: checkedLayout(layout),
  items: new Set(layout.placements.map(({ item }) => item).filter((item) => item !== null)).size,
  device_ms: stages.device ?? null,
});

/** Draw runs below each other. */
export function showRuns(into, runs) {
  const width = Math.max(...runs.map(({ layout }) => widthOf(layout)));
  into.replaceChildren(...runs.map((run) => drawRun(run, width)));
}

/** The text of a file with runs. */
export const fileOf = (runs) => JSON.stringify({ format: FORMAT, runs }, null, 1);

/** The runs of such a text; throws an error for people. */
export function runsOf(text) {
  let saved;
  try {
    saved = JSON.parse(text);
  } catch {
    throw new Error("This file is not JSON.");
  }
  if (saved?.format !== FORMAT || !Array.isArray(saved.runs) || !saved.runs.length) {
    throw new Error("This file was not saved here.");
  }
  return saved.runs.map(({ layout, items, device_ms }) => ({
    layout: checkedLayout(layout), items: Number(items), device_ms: device_ms === null ? null : Number(device_ms),
  }));
}

function drawRun(run, width) {
  const { layout } = run;
  const { figure, showStep } = drawTimeline(layout, width);
  return element("article", { className: "run", data: { algorithm: layout.algorithm } },
    element("h3", {}, NAMES[layout.algorithm] ?? layout.algorithm),
    element("p", { className: "facts" }, facts(run)),
    figure,
    ...(layout.steps > 1 ? [player(layout.steps, showStep)] : []),
    element("details", {}, element("summary", {}, "Why, and as a table"),
      element("p", { className: "reason" }, layout.reason), table(layout)),
  );
}

function facts({ layout, items, device_ms }) {
  const computed = layout.placements.reduce((sum, { tokens }) => sum + tokens, 0);
  const texts = [
    `${layout.steps} step${layout.steps === 1 ? "" : "s"}`, `${computed} tokens computed`,
    `${layout.cached_tokens} of the query's ${layout.query_tokens} from the cache`,
  ];
  if (device_ms > 0) texts.push(`${device_ms.toFixed(1)} ms`, `${Math.round((1000 * items) / device_ms)} items/s`);
  return texts.join(" · ");
}

function player(steps, showStep) {
  let timer;
  const slider = element("input", { type: "range", min: 0, max: steps, value: steps, aria: { label: "Step" } });
  const play = element("button", { type: "button" }, "Replay");
  const show = (step) => {
    slider.value = step;
    slider.setAttribute("aria-valuetext", step ? `after step ${step} of ${steps}` : "before the first step");
    showStep(step - 1);
  };
  const stop = () => {
    clearInterval(timer);
    play.textContent = "Replay";
  };
  const advance = () => {
    show(Number(slider.value) + 1);
    if (Number(slider.value) === steps) stop();
  };
  slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
  play.addEventListener("click", () => {
    if (play.textContent === "Pause") return stop();
    if (Number(slider.value) === steps) show(0);
    play.textContent = "Pause";
    timer = setInterval(() => (play.isConnected ? advance() : stop()), PAUSE);
  });
  show(steps);
  return element("p", { className: "player" }, play, slider);
}

const COLUMNS = ["step", "shard", "row", "item", "tokens", "context_tokens"];
const MOST_ROWS = 200;

function table({ placements }) {
  const numbered = ["step", "shard", "item"]; // from 1 for people, from 0 in the reply
  const text = (name, value) => (value === null ? "query" : String(value + numbered.includes(name)));
  const cell = (placement) => (name) => element("td", {}, text(name, placement[name]));
  return element("table", {},
    element("thead", {}, element("tr", {}, ...COLUMNS.map((name) => element("th", { scope: "col" }, name.replace("_", " "))))),
    element("tbody", {}, ...placements.slice(0, MOST_ROWS).map((placement) =>
      element("tr", {}, ...COLUMNS.map(cell(placement))))),
  );
}
