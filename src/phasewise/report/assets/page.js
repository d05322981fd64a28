"use strict";
// Says what is under the pointer in a chart, copies ids and commands, and switches between light and dark.
(() => {
  const REACH_PX = 18;
  const tip = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
  document.body.append(tip);

  const value = ([low, high, log], at) => (log ? low * (high / low) ** at : low + (high - low) * at);
  const written = ([, , , percent], number) =>
    percent ? `${(number * 100).toFixed(1)}%` : Number(number.toPrecision(4)).toLocaleString("en");

  // The boxes [x0, y0, x1, y1] around a path's parts, from 0 to 1; a line's parts are its corners.
  const partsOf = (path) => {
    const isLine = path.matches(".line, .steps");
    const parts = [];
    let x = 0, y = 0;
    for (const [, letter, rest] of path.getAttribute("d").matchAll(/([MLHVh])([^MLHVhz]*)/g)) {
      const numbers = rest.trim().split(" ").map((text) => Number(text) / 1000);
      if (letter === "H") [x] = numbers;
      else if (letter === "V") [y] = numbers;
      else if (letter !== "h") [x, y] = numbers;
      if (letter === "M" || (isLine && letter !== "H")) parts.push([x, y, x, y]);
      else if (!isLine) {
        const [x0, y0, x1, y1] = parts.pop();
        parts.push([Math.min(x0, x), Math.min(y0, y), Math.max(x1, x), Math.max(y1, y)]);
      }
    }
    return parts;
  };
  const cache = new WeakMap();
  const nearest = (area, event) => {
    const frame = area.getBoundingClientRect();
    let best = { away: REACH_PX };
    for (const path of area.querySelectorAll("path[data-name]")) {
      if (!cache.has(path)) cache.set(path, partsOf(path));
      cache.get(path).forEach(([x0, y0, x1, y1], place) => {
        const px = event.clientX - frame.left, py = event.clientY - frame.top;
        const across = Math.max(x0 * frame.width - px, 0, px - x1 * frame.width);
        const down = Math.max(y0 * frame.height - py, 0, py - y1 * frame.height);
        const away = Math.hypot(across, down);
        if (away <= best.away) best = { away, path, place, box: [x0, y0, x1, y1] };
      });
    }
    return best;
  };
  const sentence = (area, { path, place, box: [x0, y0, x1] }) => {
    const { name, hover, texts } = path.dataset;
    if (texts) return JSON.parse(texts)[place];
    const x = JSON.parse(area.dataset.x), y = JSON.parse(area.dataset.y);
    const figures = { x: written(x, value(x, x0)), y: written(y, value(y, 1 - y0)),
      width: written(x, value(x, x1) - value(x, x0)), row: Math.round(value(y, 1 - y0)) };
    return `${name}: ${hover.replace(/\{(\w+)\}/g, (_, key) => figures[key])}`;
  };
  for (const area of document.querySelectorAll(".area")) {
    area.addEventListener("pointermove", (event) => {
      const found = nearest(area, event);
      tip.hidden = !found.path;
      if (tip.hidden) return;
      tip.textContent = sentence(area, found);
      const left = Math.min(event.clientX + 14, document.documentElement.clientWidth - tip.offsetWidth - 8);
      tip.style.left = `${Math.max(left, 8)}px`;
      tip.style.top = `${Math.max(event.clientY - tip.offsetHeight - 12, 8)}px`;
    });
    area.addEventListener("pointerleave", () => { tip.hidden = true; });
  }

  const copied = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Pages from file:// may have no clipboard of their own.
      const field = Object.assign(document.createElement("textarea"), { value: text });
      document.body.append(field);
      field.select();
      document.execCommand("copy");
      field.remove();
    }
  };
  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      await copied(button.dataset.copy);
      button.classList.add("copied");
      setTimeout(() => button.classList.remove("copied"), 1200);
    });
  }

  const button = document.querySelector("#scheme");
  button.addEventListener("click", () => {
    const root = document.documentElement.style;
    const isDark = root.colorScheme ? root.colorScheme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.colorScheme = isDark ? "light" : "dark";
  });
  button.hidden = false;
})();
