"use strict";
// Draws the page's JSON figures in the colours of style.css, and again when the colour scheme changes.
(() => {
  const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"] };
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  const colour = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const coloured = (value, known) => {
    if (typeof value === "string") {
      return value.startsWith("--") ? (known[value] ??= colour(value)) : value;
    }
    if (Array.isArray(value)) {
      return typeof value[0] === "object" && value[0] !== null ? value.map((item) => coloured(item, known)) : value;
    }
    if (value !== null && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, coloured(item, known)]));
    }
    return value;
  };
  const figures = new WeakMap();
  for (const plot of document.querySelectorAll(".plot")) {
    figures.set(plot, JSON.parse(plot.querySelector("script").textContent));
    plot.textContent = "";
  }
  const known = {};
  const picture = (plot) => plot.getAttribute("aria-label").toLowerCase().replace(/[^a-z]+/g, "-").replace(/-$/, "");
  const draw = (plot) => {
    // A figure in a closed section is drawn when the section opens.
    if (plot.closest("details:not([open])")) return;
    const { data, layout } = coloured(figures.get(plot), known);
    const toImageButtonOptions = { filename: picture(plot), scale: 2 };
    Plotly.react(plot, data, layout, { ...config, toImageButtonOptions });
  };
  const drawAll = () => {
    for (const name of Object.keys(known)) delete known[name];
    document.querySelectorAll(".plot").forEach(draw);
  };
  for (const part of document.querySelectorAll("details")) {
    part.addEventListener("toggle", () => part.open && part.querySelectorAll(".plot").forEach(draw));
  }
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", drawAll);
  const button = document.querySelector("#scheme");
  button.addEventListener("click", () => {
    const root = document.documentElement.style;
    const isDark = root.colorScheme ? root.colorScheme === "dark" : dark.matches;
    root.colorScheme = isDark ? "light" : "dark";
    drawAll();
  });
  button.hidden = false;
  drawAll();
})();
