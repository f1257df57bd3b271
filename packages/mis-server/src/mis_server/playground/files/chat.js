// A conversation: what was said so far, and the answer that is being written. It lives as long as the page.

import { element } from "./dom.js";
import { percent } from "./results.js";

let turns = []; // messages as they are sent, each with the elements of its text

/** The messages of a request: the instructions, what was said, and what is typed now. */
export function messages(state) {
  const said = turns.map(({ role, content }) => ({ role, content }));
  const first = state.system ? [{ role: "system", content: state.system }] : [];
  return [...first, ...said, { role: "user", content: state.message }];
}

/** Forget what was said. */
export const forget = () => { turns = []; };

/** Show what was said. */
export function showTurns(into) {
  into.replaceChildren(element("h2", {}, "Chat"), element("ol", { className: "chat" }, ...turns.map(({ shown }) => shown)));
}

/** Say the message that is typed, and begin its answer; gives what adds tokens to it and what ends it. */
export function beginTurn(into, state) {
  const text = element("p", { className: "text" });
  const answer = { role: "assistant", content: "", shown: turnOf("Model", text) };
  const asked = { role: "user", content: state.message, shown: turnOf("You", element("p", { className: "text" }, state.message)) };
  const before = turns;
  turns = [...before, asked, answer];
  showTurns(into);
  into.ariaBusy = "true"; // or screen readers would say each token
  return {
    add(content, tokens) {
      answer.content += content;
      if (content || tokens.length) text.append(piece(content, tokens));
    },
    end() {
      into.ariaBusy = "false";
      if (!answer.content && turns.at(-1) === answer) turns = before; // nothing was said: it may be sent again
    },
  };
}

const turnOf = (name, text) => element("li", {}, element("p", { className: "facts" }, name), text);

/** A piece of an answer, the fainter the less probable its tokens were. */
function piece(content, tokens) {
  const probability = Math.exp(tokens.reduce((sum, { logprob }) => sum + logprob, 0));
  const made = element("span", { title: tokens.length ? percent(probability) : "" }, content);
  made.style.setProperty("--surprise", (1 - probability).toFixed(3));
  return made;
}
