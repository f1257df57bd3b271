// Outcomes as bars, the best first.

import { element } from "./dom.js";
import { visible } from "./labels.js";

export const HUES = 6; // of which style sheets have colours

/** A probability with three digits that mean something. */
export function percent(probability) {
  if (probability >= 0.9995 && probability < 1) return "> 99.9 %";
  if (probability > 0 && probability < 0.001) return `${(100 * probability).toExponential(1)} %`;
  return `${(100 * probability).toFixed(1)} %`;
}

/** Show the outcomes of a task, see `tasks.js`, and what they are in the order of. */
export function showOutcomes(into, outcomes, order) {
  into.replaceChildren(
    element("h2", {}, "Results ", element("small", {}, order)),
    element("ol", { className: "outcomes" }, ...outcomes.map(outcome)),
  );
}

function outcome({ title, bars, mass, note }) {
  const facts = [note, mass == null ? "" : `label mass ${percent(mass)}`].filter(Boolean).join(" · ");
  return element("li", {},
    element("p", { className: "title" }, title),
    ...bars.map(bar),
    element("p", { className: "facts", title: "Label mass: how probable it is that the model says any of the labels." },
      facts),
  );
}

function bar({ name, probability }, place) {
  const filled = element("span", { className: `filled hue-${place % HUES}` });
  filled.style.width = `${100 * probability}%`;
  return element("p", { className: "bar" },
    element("span", { className: "name" }, visible(name)),
    element("span", { className: "track", aria: { hidden: true } }, filled),
    element("span", { className: "value" }, percent(probability)),
  );
}
