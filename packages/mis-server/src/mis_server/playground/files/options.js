// The fields of a request that the form has no place for: tables of them, made of the server's OpenAPI document.

import { controlOf, kindOf, rangeOf, valueOf } from "./controls.js";
import { byId, element } from "./dom.js";
import { ownFields, TASKS } from "./tasks.js";

const USELESS = /^(No effect|Not supported)\b/; // as the help of such fields begins

/** The fields of each task's body, by task and name, that a document describes. */
export function fieldsOf({ paths }) {
  const described = Object.entries(TASKS).filter(([, { route }]) => paths && `/${route}` in paths);
  return Object.fromEntries(described.map(([task, { route }]) =>
    [task, paths[`/${route}`].post.requestBody.content["application/json"].schema.properties]));
}

/** Make a table for each task that has fields. */
export function makeTables(into, fields, state) {
  into.replaceChildren(...Object.entries(fields).map(([task, ofTask]) => {
    const own = ownFields(task, state);
    const others = Object.entries(ofTask)
      .filter(([name, { description }]) => !own.includes(name) && !USELESS.test(description));
    return element("fieldset", { data: { for: task }, aria: { label: "More options" } },
      element("table", {}, element("tbody", {}, ...others.map(([name, field]) => row(task, name, field)))));
  }));
}

/** Give the controls of the form that can be seen the help and the range of the fields that they are named after. */
export function describe(form, fields) {
  for (const control of form.querySelectorAll("[name]")) {
    if (control.closest("[hidden]") || !(control.name in fields)) continue;
    control.title = fields[control.name].description ?? "";
    if (control.type === "number") Object.assign(control, rangeOf(kindOf(fields[control.name])));
  }
}

/** What is set for a task, by field. What is wrong is left out, and beside its control it says why. */
export function optionsOf(task) {
  const found = {};
  for (const control of byId("options").querySelectorAll(`[data-for=${task}] [name]`)) {
    const value = valueOf(control);
    if (value !== undefined) found[fieldOf(control.name)] = value;
    control.ariaInvalid = String(!control.validity.valid);
    byId(`${control.id}-fault`).textContent = control.validationMessage;
  }
  return found;
}

// The names of controls say the task, too: in the address they stand beside each other.
const nameOf = (task, field) => `${task}.${field}`;
const fieldOf = (name) => name.slice(name.indexOf(".") + 1);

function row(task, name, field) {
  const id = `option-${task}-${name}`;
  const properties = { id, name: nameOf(task, name), aria: { describedby: `${id}-help ${id}-fault` } };
  return element("tr", {},
    element("th", { scope: "row" }, element("label", { htmlFor: id }, ...breakable(name))),
    element("td", {}, controlOf(field, properties)),
    element("td", { id: `${id}-fault`, className: "fault" }),
    element("td", { id: `${id}-help`, className: "hint" }, ...prose(field.description ?? "")));
}

/** A name that may go on in a new line after each of its words. */
const breakable = (name) => name.split(/(?<=_)/).flatMap((word) => [word, element("wbr")]);

/** A text in which names of fields stand between backticks. */
const prose = (text) => text.split("`").map((part, place) => (place % 2 ? element("code", {}, part) : part));
