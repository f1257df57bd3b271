// What a request cost: tokens, those that came from the cache, and where its time went.

import { element } from "./dom.js";

const STAGES = {
  tokenize: "texts to tokens",
  queue: "until a step has room",
  plan: "laying out, on the host",
  device: "first step to last value",
  finish: "values to scores",
};

const milliseconds = (value) => `${value < 10 ? value.toFixed(1) : value.toFixed(0)} ms`;

/** Show the usage that a reply has, its stages by name, and how long it took here. */
export function showCosts(into, usage, stages, elapsed, written = 0) {
  const prompt = usage.prompt_tokens ?? usage.input_tokens;
  const details = usage.prompt_tokens_details ?? usage.input_tokens_details;
  const cached = details?.cached_tokens ?? usage.x_cached_tokens;
  const named = Object.entries(STAGES).filter(([name]) => name in stages);
  const total = named.reduce((sum, [name]) => sum + stages[name], 0);
  into.replaceChildren(
    element("h2", {}, "Tokens and time"),
    element("p", { className: "totals" },
      fact(prompt, "tokens"), fact(cached, "from the cache"),
      ...(written ? [fact(written, "written")] : []), fact(milliseconds(elapsed), "in this browser")),
    element("div", { className: "stages", aria: { hidden: true } },
      ...named.map(([name], place) => part(stages[name] / total, place))),
    element("ul", { className: "legend" },
      ...named.map(([name, meaning], place) => element("li", { title: meaning },
        element("span", { className: `dot hue-${place}` }), `${name} ${milliseconds(stages[name])}`))),
  );
}

const fact = (value, name) => element("span", {}, element("strong", {}, String(value)), ` ${name}`);

function part(share, place) {
  const made = element("span", { className: `hue-${place}` });
  made.style.width = `${100 * share}%`;
  return made;
}
