// Controls for the fields of a request, as their JSON schemas want them, and what their texts mean.

import { element } from "./dom.js";

const MEANINGS = { text: String, number: Number, json: JSON.parse };

/** The control for a field; left empty it means that the field is not sent. */
export function controlOf(field, properties) {
  const kind = kindOf(field);
  const usual = field.default ?? "";
  const choice = (meaning, values) => element("select", { ...properties, data: { meaning } },
    element("option", { value: "" }, usual === "" ? "default" : `default (${usual})`),
    ...values.map((value) => element("option", { value }, value)));
  const input = (meaning, others) => element("input",
    { ...properties, type: "text", placeholder: String(usual), data: { meaning }, ...others });
  if (kind.type === "boolean") return choice("json", ["true", "false"]);
  if (kind.enum?.every((value) => typeof value === "string")) return choice("text", kind.enum);
  if (["integer", "number"].includes(kind.type)) return input("number", { type: "number", ...rangeOf(kind) });
  if (kind.type === "string") return input("text");
  return input("json", { placeholder: usual === "" ? "JSON" : JSON.stringify(usual) });
}

/** The value of a control; undefined where nothing is set, or something wrong, which the control then says. */
export function valueOf(control) {
  control.setCustomValidity("");
  if (control.value === "") return undefined;
  try {
    const value = MEANINGS[control.dataset.meaning](control.value);
    return control.validity.valid ? value : undefined;
  } catch {
    control.setCustomValidity('This is not JSON. Write a text as "a", a list as ["a", "b"], an object as {"a": 1}.');
  }
}

/** What a field is when it is not null; without a type where that may be one of several things. */
export function kindOf(field) {
  const kinds = (field.anyOf ?? [field]).filter(({ type }) => type !== "null");
  return kinds.length === 1 ? kinds[0] : {};
}

/** The range of a number, as its input has it. That an end is excluded only the server knows. */
export function rangeOf({ type, minimum, maximum, exclusiveMinimum, exclusiveMaximum }) {
  if (type === "number") {
    return { min: minimum ?? exclusiveMinimum ?? "", max: maximum ?? exclusiveMaximum ?? "", step: "any" };
  }
  const ends = (...given) => given.filter(Number.isFinite);
  return { // whole numbers beyond the safe ones would be rounded on their way
    min: Math.max(...ends(minimum, exclusiveMinimum + 1, Number.MIN_SAFE_INTEGER)),
    max: Math.min(...ends(maximum, exclusiveMaximum - 1, Number.MAX_SAFE_INTEGER)),
    step: 1,
  };
}
