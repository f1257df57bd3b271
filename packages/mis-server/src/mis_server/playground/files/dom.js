// Elements are made here and nowhere else. Whatever a server or a user says becomes text, never markup.

/** Make an element; `properties` are those of the element, except `data` and `aria`, which are attributes. */
export function element(tag, { data = {}, aria = {}, ...properties } = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  Object.assign(made.dataset, data);
  for (const [name, value] of Object.entries(aria)) made.setAttribute(`aria-${name}`, value);
  made.append(...children);
  return made;
}

/** The element with this id. */
export const byId = (id) => document.getElementById(id);
