// Draws the two figures, keeps the choices above the curves, filters long tables. No request is ever made.
const charts = JSON.parse(document.getElementById("charts").textContent);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function config() {
  const ink = css("--ink"), quiet = css("--quiet"), rule = css("--rule");
  return {
    background: "transparent",
    font: getComputedStyle(document.body).fontFamily,
    view: { stroke: null },
    axis: {
      labelColor: quiet, titleColor: quiet, titleFontWeight: "normal", domainColor: rule, tickColor: rule,
      gridColor: rule, labelFontSize: 11.5, titleFontSize: 12,
    },
    legend: { labelColor: ink, labelFontSize: 12.5 },
    header: { labelColor: ink, labelFontSize: 12.5, labelFontWeight: "bold", labelAnchor: "start", labelLimit: 220 },
    text: { color: ink },
  };
}

async function embed(place, spec) {
  const options = { actions: false, renderer: "svg", ast: true, config: config(), tooltip: { theme: "paribus" } };
  const drawn = await window.vegaEmbed(place, spec, options);
  place.setAttribute("aria-busy", "false");
  return drawn;
}

// The curves: one axis is laid out side by side, every other axis is held at the level chosen above the figure.
function curves(place, { spec, panels, axes, base }) {
  const pick = (name) => document.querySelector(`[data-curves="${name}"]`);
  const chosen = () => {
    const across = Number(pick("axis")?.value ?? 0);
    const at = axes.map((axis, i) => pick(`at-${i}`)?.value ?? base[i]);
    return { across, at, group: pick("group")?.value ?? panels[0].group };
  };
  const draw = () => {
    const { across, at, group } = chosen();
    axes.forEach((axis, i) => {
      const box = document.querySelector(`[data-curves-box="at-${i}"]`);
      const combined = panels.some((panel) => panel.at.filter((level, j) => level !== base[j]).length > 1);
      if (box) box.hidden = i === across || !combined;
    });
    const shown = panels.filter((panel) =>
      panel.group === group && panel.at.every((level, i) => across < 0 || i === across || level === at[i]));
    const columns = Math.max(1, Math.floor((place.clientWidth - 50) / 242));
    const values = shown.flatMap(({ cell, order, rows }) => rows.map((row) => ({ cell, order, ...row })));
    return embed(place, { ...spec, columns, datasets: { curves: values } });
  };
  document.querySelectorAll("[data-curves]").forEach((select) => select.addEventListener("change", draw));
  return draw();
}

// A long table gets a choice of levels for each axis; rows that do not match are hidden.
function filters() {
  const selects = [...document.querySelectorAll("[data-filter]")];
  const count = document.getElementById("filtered");
  const apply = () => {
    const rows = [...document.querySelectorAll("#table-comparison tbody tr")];
    rows.forEach((row) => {
      row.hidden = selects.some((s) => s.value && row.dataset[`at${s.dataset.filter}`] !== s.value);
    });
    if (count) count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} cells`;
  };
  selects.forEach((select) => select.addEventListener("change", apply));
  if (selects.length) apply();
}

// What is folded away is printed too.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));

async function all() {
  const forest = document.getElementById("forest"), panels = document.getElementById("curves");
  if (charts.forest && forest) await embed(forest, charts.forest);
  if (charts.curves && panels) await curves(panels, charts.curves);
}

filters();
await all();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
let width = innerWidth;
addEventListener("resize", () => {
  if (Math.abs(innerWidth - width) > 120) { width = innerWidth; all(); }
});
document.body.dataset.ready = "true";
