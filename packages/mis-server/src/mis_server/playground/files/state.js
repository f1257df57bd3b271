// What is in the form, and the same in the address: a link to this page brings the request back. No key is among it.

const LONGEST = 50_000; // characters of an address

const EXAMPLE = {
  task: "score",
  query: "Review: Great film, I loved every minute.\nSentiment: positive\n\n"
    + "Review: Two hours of my life that I will not get back.\nSentiment: negative\n\nReview: ",
  items: "A warm and funny story.\nThe plot made no sense at all.\nI have never been so bored.\nSimply wonderful.",
  suffix: "\nSentiment:",
  labels: " positive\n negative",
  softmax: "on",
  item_first: "",
  input: "Where is my parcel? It should have been here on Monday. I want my money back!",
  questions: "The customer wants money back.\nWhat is it about? | billing | delivery | something else\n"
    + "How angry is the customer? < calm < cross < furious",
  system: "",
  message: "Name three animals that purr.",
  max_tokens: "100",
  temperature: "0",
};

const IS_OPTION = /^[a-z]+\.\w+$/; // a task and a field: its control may come later, or never

/** Fields of the example, changed by what the address says. */
export const fromAddress = () => ({ ...EXAMPLE, ...said((name) => name in EXAMPLE || IS_OPTION.test(name)) });

function said(isWanted) {
  return Object.fromEntries([...new URLSearchParams(location.hash.slice(1))].filter(([name]) => isWanted(name)));
}

/** Keep the fields that differ from the example in the address; gives whether there is room for them. */
export function toAddress(state) {
  const changed = Object.entries(state).filter(([name, value]) => value !== (EXAMPLE[name] ?? ""));
  const fragment = new URLSearchParams(changed).toString();
  const fits = fragment.length <= LONGEST;
  history.replaceState(null, "", fits && fragment ? `#${fragment}` : location.pathname + location.search);
  return fits;
}

/** Put fields into a form. */
export function fill(form, state) {
  for (const field of form.querySelectorAll("[name]")) {
    if (field.type === "checkbox") field.checked = state[field.name] === "on";
    // A text area drops one line end at its beginning only when a page is parsed; set here, it stays.
    else field.value = state[field.name] ?? "";
  }
}

/** The fields of a form, the task that is chosen, and options in the address that the form has no control for. */
export function read(form, task) {
  const state = { task, ...said((name) => IS_OPTION.test(name)) };
  for (const field of form.querySelectorAll("[name]")) {
    state[field.name] = field.type === "checkbox" ? (field.checked ? "on" : "") : field.value;
  }
  return state;
}
