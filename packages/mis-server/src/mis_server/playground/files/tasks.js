// The tasks: what each sends for the fields of the form, and what its reply says of each item.
//
// `outcomes` gives one object per item, the best first: `title`, `bars` (`name` and `probability`), perhaps `mass`
// (the probability that the model would say any of the labels) and `note`; `order` says what they are in the order of.
// A chat has none of these: its answer is shown as it comes, by `chat.js`.

import { messages } from "./chat.js";
import { visible } from "./labels.js";

const lines = (text) => text.split("\n").filter((line) => line !== "");

const score = {
  route: "v1/score",
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
    const outcomes = items.map((title, item) => ({
      title,
      bars: labels.map((name, label) => ({ name, probability: reply.scores[item][label] })),
      mass: reply.token_logprobs[item].reduce((sum, logprob) => sum + Math.exp(logprob), 0),
    }));
    return outcomes.sort((one, other) => other.bars[0].probability - one.bars[0].probability);
  },
};

const rerank = {
  route: "v1/rerank",
  request: (state) => ({ query: state.query, documents: lines(state.items) }),
  order: () => "by relevance",
  outcomes(state, reply) {
    const documents = lines(state.items);
    return reply.results.map(({ index, relevance_score: probability }) => ({
      title: documents[index],
      bars: [{ name: "relevance", probability }],
    }));
  },
};

const decide = {
  route: "v1/decisions",
  request: (state) => ({ input: state.input, questions: lines(state.questions).map(question) }),
  order: () => "as they were asked",
  outcomes: (state, reply) => reply.answers.map((answer, place) => ({
    title: question(lines(state.questions)[place]).instructions,
    bars: answer.probabilities
      ? answer.probabilities.map(({ value, label, probability }) => ({ name: label ?? String(value), probability }))
      : [{ name: "true", probability: answer.probability }],
    mass: answer.label_mass,
    note: answer.type === "score" ? `expected level ${answer.score.toFixed(2)}` : "",
  })),
};

const chat = {
  route: "v1/chat/completions",
  request: (state) => ({
    messages: messages(state),
    max_tokens: Number(state.max_tokens),
    temperature: Number(state.temperature),
    logprobs: true,
  }),
};

export const TASKS = { score, rerank, decide, chat };

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
