"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const axes = (layout) => Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key));

  function theme(layout) {
    const font = getComputedStyle(document.body).fontFamily;
    const changes = {
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: font, size: 13, color: colour("--ink") },
      hoverlabel: { font: { family: font, size: 13 } },
    };
    for (const axis of axes(layout)) {
      changes[`${axis}.gridcolor`] = colour("--grid");
      changes[`${axis}.linecolor`] = colour("--line");
      changes[`${axis}.tickcolor`] = colour("--line");
      changes[`${axis}.zerolinecolor`] = colour("--soft");
    }
    return changes;
  }

  const config = { responsive: true, displayModeBar: false };
  for (const [identifier, { data, layout }] of Object.entries(figures)) {
    const element = document.getElementById(identifier);
    Plotly.newPlot(element, data, layout, config).then(() => Plotly.relayout(element, theme(layout)));
  }
  const repaint = () => {
    for (const element of document.querySelectorAll(".plot")) Plotly.relayout(element, theme(element.layout));
  };
  dark.addEventListener("change", repaint);
  // Paper is white whatever the reader's theme, and nothing on it can be unfolded.
  addEventListener("beforeprint", () => {
    document.documentElement.classList.add("printing");
    for (const table of document.querySelectorAll("details")) table.open = true;
    repaint();
  });
  addEventListener("afterprint", () => {
    document.documentElement.classList.remove("printing");
    repaint();
  });
})();
