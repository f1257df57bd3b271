// The tasks: what each sends for the fields of the form, and what its reply says of each item.
//
// `outcomes` gives one object per item, the best first: `title`, `bars` (`name` and `probability`), perhaps `mass`
// (the probability that the model would say any of the labels) and `note`; `order` says what they are in the order of.
// A chat has none of these: its answer is shown as it comes, by `chat.js`. `streaming` is what makes it come so.
// `reserved` are fields that the page has another way for, or nothing to show for.

import { messages } from "./chat.js";
import { visible } from "./labels.js";

const lines = (text) => text.split("\n").filter((line) => line !== "");

const score = {
  route: "v1/score",
  reserved: ["label_token_ids"], // labels are texts here
  request: (state) => ({
    query: state.query,
    items: lines(state.items).map((line) => line + state.suffix),
    labels: lines(state.labels),
    apply_softmax: state.softmax === "on",
    item_first: state.item_first === "on",
    return_token_logprobs: true,
    return_layout: true,
  }),
  order: (state) => `by ${visible(lines(state.labels)[0])}`,
  outcomes(state, reply) {
    const items = lines(state.items);
    const labels = lines(state.labels);
    const scored = items.map((title, item) => reply.scores[item] && {
      title,
      bars: labels.map((name, label) => ({ name, probability: reply.scores[item][label] })),
      mass: reply.token_logprobs[item].reduce((sum, logprob) => sum + Math.exp(logprob), 0),
    }).filter(Boolean);
    scored.sort((one, other) => other.bars[0].probability - one.bars[0].probability);
    return [...scored, ...refused(items, reply)];
  },
};

const rerank = {
  route: "v1/rerank",
  request: (state) => ({ query: state.query, documents: lines(state.items) }),
  order: () => "by relevance",
  outcomes(state, reply) {
    const documents = lines(state.items);
    const ranked = reply.results.map(({ index, relevance_score: probability }) => ({
      title: documents[index],
      bars: [{ name: "relevance", probability }],
    }));
    return [...ranked, ...refused(documents, reply)];
  },
};

const decide = {
  route: "v1/decisions",
  request: (state) => ({ input: state.input, questions: lines(state.questions).map(question) }),
  order: () => "as they were asked",
  outcomes: (state, reply) => reply.answers.map((answer, place) => ({
    title: question(lines(state.questions)[place]).instructions,
    bars: probabilitiesOf(answer),
    mass: answer.label_mass,
    note: answer.error?.message ?? (answer.type === "score" ? `expected level ${answer.score.toFixed(2)}` : ""),
  })),
};

const systemone = {
  route: "v1/systemone",
  request: (state) => ({ state: state.input, questions: byIds(lines(state.questions).map(question)) }),
  order: () => "as they were asked",
  outcomes: (state, reply) => lines(state.questions).map(question).map(({ instructions: title }, place) => {
    const id = idOf(place);
    const answer = reply.answers[id];
    if (!answer) return { title, bars: [], note: reply.x_errors?.[id]?.message ?? "" };
    const { type, noul, probabilities = { yes: noul }, legend = {}, score, confidence, x_label_mass: mass } = answer;
    const bars = Object.entries(probabilities).map(([name, probability]) => ({ name: legend[name] ?? name, probability }));
    const notes = [
      type === "score" && `expected level ${score.toFixed(2)}`,
      confidence !== undefined && `confidence ${confidence.toFixed(2)}`,
      reply.x_abstained?.includes(id) && "abstained",
    ];
    return { title, bars, mass, note: notes.filter(Boolean).join(" · ") };
  }),
};

const idOf = (place) => `q${place + 1}`;

/** Questions as System One has them. */
const byIds = (questions) => Object.fromEntries(questions.map(({ type, instructions, choices, levels }, place) => {
  if (type === "predicate") return [idOf(place), { type: "noul", instructions }];
  if (type === "score") return [idOf(place), { type, instructions, criteria: levels.map(({ label }) => label) }];
  return [idOf(place), { type, instructions, criteria: Object.fromEntries(choices.map(({ value }) => [value, null])) }];
}));

const chat = {
  route: "v1/chat/completions",
  request: (state) => ({
    messages: messages(state),
    max_tokens: Number(state.max_tokens),
    temperature: Number(state.temperature),
    logprobs: true,
  }),
  streaming: { stream: true, stream_options: { include_usage: true } },
  reserved: ["n"], // one answer is shown
};

export const TASKS = { score, rerank, decide, systemone, chat };

/** The fields that the page itself sends or keeps away. */
export function ownFields(task, state) {
  const { request, streaming = {}, reserved = [] } = TASKS[task];
  return [...Object.keys({ ...request(state), ...streaming }), ...reserved];
}

/** Items that were not scored, where `on_error` lets the others be. */
const refused = (items, { errors = [] }) =>
  errors.map(({ index, message }) => ({ title: items[index], bars: [], note: message }));

function probabilitiesOf({ type, probability, probabilities = [] }) {
  if (type === "predicate") return [{ name: "true", probability }];
  return probabilities.map(({ value, label, probability }) => ({ name: label ?? String(value), probability }));
}

/** A line as a question: `Which? | this | that`, `How much? < little < much`, or a statement. */
function question(line) {
  const split = (mark) => line.split(mark).map((part) => part.trim());
  if (line.includes("|")) {
    const [instructions, ...choices] = split("|");
    return { type: "choice", instructions, choices: choices.map((value) => ({ value })) };
  }
  if (line.includes("<")) {
    const [instructions, ...levels] = split("<");
    return { type: "score", instructions, levels: levels.map((label) => ({ label })) };
  }
  return { type: "predicate", instructions: line };
}
