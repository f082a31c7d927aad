"use strict";
const root = document.documentElement;
// A browser says so where a chart that was fitted to its column changes the column: nothing is wrong.
addEventListener("error", (event) => { if (event.message.startsWith("ResizeObserver loop")) event.preventDefault(); });
const views = () => Bokeh.index.roots.filter((view) => view.model.type === "Figure");
const paint = () => views().forEach((view) => view.all_views?.().concat(view).forEach((each) => each.request_paint?.()) ?? view.request_paint?.());
const dark = matchMedia("(prefers-color-scheme: dark)");
document.getElementById("theme").addEventListener("click", () => {
  const now = root.dataset.theme ?? (dark.matches ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
  paint();
});
dark.addEventListener("change", paint);
document.querySelectorAll("[data-x]").forEach((button) => button.addEventListener("click", () => {
  document.querySelectorAll("[data-x]").forEach((each) => each.classList.toggle("on", each === button));
  const label = button.dataset.x === "lap" ? button.textContent.replace(/s$/, "") : "seconds";
  for (const view of views()) {
    const sources = view.model.renderers.map((each) => each.data_source).filter((each) => each.name === "course");
    for (const source of sources) source.data = { ...source.data, x: source.data[button.dataset.x] };
    if (sources.length) for (const axis of view.model.below) {
      axis.ticker.min_interval = button.dataset.x === "lap" ? 1 : 0;
      if (axis.axis_label) axis.axis_label = label;
    }
  }
}));
const drawn = () => {
  const charts = document.querySelectorAll(".chart"), found = views();
  if (found.length === charts.length && found.every((view) => view.is_idle ?? true)) {
    root.dataset.charts = found.length;
    root.dataset.drawn = Math.round(performance.now());
  } else setTimeout(drawn, 20);
};
drawn();
