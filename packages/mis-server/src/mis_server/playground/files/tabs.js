// Tabs as the ARIA practices have them: one stop of the Tab key; arrows, Home and End choose.

/** Make buttons tabs; calls `chosen` with the task of the one that is chosen. Gives a function that chooses. */
export function makeTabs(list, chosen) {
  const tabs = [...list.querySelectorAll("[role=tab]")];
  const choose = (task) => {
    for (const tab of tabs) {
      const isChosen = tab.dataset.task === task;
      tab.setAttribute("aria-selected", isChosen);
      tab.tabIndex = isChosen ? 0 : -1;
      if (isChosen) document.getElementById(tab.getAttribute("aria-controls")).setAttribute("aria-labelledby", tab.id);
    }
    chosen(task);
  };
  const moves = { ArrowRight: (at) => at + 1, ArrowLeft: (at) => at - 1, Home: () => 0, End: () => tabs.length - 1 };
  list.addEventListener("click", ({ target }) => target.dataset.task && choose(target.dataset.task));
  list.addEventListener("keydown", (event) => {
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    const next = tabs[(move(tabs.indexOf(document.activeElement)) + tabs.length) % tabs.length];
    next.focus();
    choose(next.dataset.task);
  });
  return choose;
}
