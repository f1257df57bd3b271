// One layout, drawn: the query in the KV cache above, then a line for each step with the tokens that it computes.

import { element } from "./dom.js";
import { cachedAfter, described, isSeen } from "./layout.js";
import { HUES } from "./results.js";

const MOST = 2000; // placements drawn; more would be thinner than a line

/** Draw a layout to a scale of so many tokens. Gives its element and `showStep`, which shows it as a step ends. */
export function drawTimeline(layout, width) {
  const cache = element("div", { className: "track cache" });
  const drawn = layout.placements.slice(0, MOST).map((placement) => ({ placement, box: boxOf(placement, width) }));
  const tracks = new Map();
  for (const { placement, box } of drawn) {
    const name = trackName(placement, layout);
    if (!tracks.has(name)) tracks.set(name, element("div", { className: "track", data: { step: placement.step } }));
    tracks.get(name).append(box);
  }
  const told = element("p", { className: "told", aria: { live: "polite" } }, "Choose a segment to see what it sees.");
  const seesInCache = (tokens) => cache.style.setProperty("--seen", `${(100 * Math.min(tokens, layout.query_tokens)) / width}%`);
  makeChoosable(drawn, seesInCache, told);
  if (layout.placements.length > MOST) {
    told.textContent = `The first ${MOST} of ${layout.placements.length} segments are drawn.`;
  }
  const lines = [["KV cache", cache], ...tracks].map(([name, track]) =>
    element("div", { className: "line" }, element("span", { className: "line-name" }, name), track));
  const showStep = (step) => {
    for (const [, track] of tracks) {
      track.classList.toggle("is-later", Number(track.dataset.step) > step);
      track.classList.toggle("is-now", Number(track.dataset.step) === step);
    }
    const held = cachedAfter(layout, step);
    cache.replaceChildren(
      ...(layout.cached_tokens ? [span("was-cached", 0, layout.cached_tokens, width)] : []),
      ...(held > layout.cached_tokens ? [span("query", layout.cached_tokens, held - layout.cached_tokens, width)] : []),
    );
  };
  showStep(layout.steps - 1);
  return { figure: element("div", { className: "timeline" }, ...lines, told), showStep };
}

function trackName({ step, shard }, layout) {
  const shards = new Set(layout.placements.map((placement) => placement.shard)).size;
  return shards > 1 ? `Step ${step + 1}, device ${shard + 1}` : `Step ${step + 1}`;
}

function boxOf(placement, width) {
  const kind = placement.item === null ? "query" : `item hue-${1 + (placement.item % (HUES - 1))}`; // hue-0 is the query's
  const box = span(`placement ${kind}`, placement.row, placement.tokens, width);
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", described(placement));
  box.title = described(placement);
  box.tabIndex = -1;
  return box;
}

function span(className, begin, tokens, width) {
  const made = element("span", { className });
  made.style.left = `${(100 * begin) / width}%`;
  made.style.width = `${(100 * tokens) / width}%`;
  return made;
}

/** One stop of the Tab key; arrows, pointer and touch choose a placement, and what it sees is marked. */
function makeChoosable(drawn, seesInCache, told) {
  const choose = (at) => {
    const { placement: chosen } = drawn[at];
    drawn.forEach(({ placement, box }, place) => {
      box.classList.toggle("is-chosen", place === at);
      box.classList.toggle("is-seen", isSeen(placement, chosen));
      box.tabIndex = place === at ? 0 : -1;
    });
    seesInCache(chosen.context_tokens);
    told.textContent = described(chosen);
  };
  drawn.forEach(({ box }, at) => {
    box.addEventListener("focus", () => choose(at));
    box.addEventListener("pointerenter", () => choose(at));
    box.addEventListener("keydown", (event) => {
      const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: drawn.length - 1 }[event.key];
      if (!(next in drawn)) return;
      event.preventDefault();
      drawn[next].box.focus();
    });
  });
  if (drawn.length) drawn[0].box.tabIndex = 0;
}
