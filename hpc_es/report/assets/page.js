"use strict";
// Draws the charts of the page with uPlot, and makes tables sortable.
(() => {
  const HEIGHT = { wide: 360, narrow: 270 };
  const COLORS = 8;
  const DASHES = [[], [8, 4], [2, 3]];
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = (value) => {
    if (value == null) return "";
    const size = Math.abs(value);
    if (size >= 1e6 || (size > 0 && size < 1e-3)) return String(Number(value.toPrecision(4)).toExponential());
    return Number(value.toPrecision(4)).toLocaleString("en");
  };

  function unit(axis, lines) {
    let most = 0;
    for (const line of lines) for (const x of line.points[axis.key][0]) most = Math.max(most, x);
    return axis.units.find(([size]) => most >= 2 * size) || axis.units[axis.units.length - 1];
  }

  // The nearest point of a series at or beside an index; null beyond its ends.
  function nearest(u, series, index) {
    const ys = u.data[series];
    if (series === 0 || ys[index] != null) return index;
    let left = index, right = index;
    while (left >= 0 && ys[left] == null) left -= 1;
    while (right < ys.length && ys[right] == null) right += 1;
    if (left < 0 || right >= ys.length) return null;
    const x = u.data[0];
    return x[index] - x[left] <= x[right] - x[index] ? left : right;
  }

  class Chart {
    constructor(figure) {
      this.figure = figure;
      this.data = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
      this.area = figure.querySelector(".plot");
      this.axis = this.data.axes[0];
      this.withRuns = false;
      this.hidden = new Set();
      this.buttons = [...figure.querySelectorAll("[data-axis]")];
      for (const button of this.buttons) button.addEventListener("click", () => this.choose(button.dataset.axis));
      for (const box of figure.querySelectorAll("[data-group]")) {
        box.addEventListener("change", () => {
          const group = Number(box.dataset.group);
          if (box.checked) this.hidden.delete(group); else this.hidden.add(group);
          this.draw();
        });
      }
      const runs = figure.querySelector(".runs");
      if (runs) runs.addEventListener("change", () => { this.withRuns = runs.checked; this.draw(); });
      this.area.addEventListener("keydown", (event) => this.key(event));
      new ResizeObserver(() => {
        if (this.plot && this.area.clientWidth && this.area.clientWidth !== this.plot.width) this.plot.setSize(this.size());
      }).observe(this.area);
      this.draw();
    }

    choose(key) {
      this.axis = this.data.axes.find((axis) => axis.key === key);
      for (const button of this.buttons) button.setAttribute("aria-pressed", String(button.dataset.axis === key));
      this.draw();
    }

    size() {
      const width = this.area.clientWidth || 600;
      return { width, height: width < 560 ? HEIGHT.narrow : HEIGHT.wide };
    }

    draw() {
      const lines = this.data.lines.filter(
        (line) => !this.hidden.has(line.group) && (line.style !== "faint" || this.withRuns));
      const [size, name] = unit(this.axis, this.data.lines);
      this.unit = name;
      const tables = [], series = [{}], bands = [];
      this.main = new Map(); // series: group, of the lines whose values the legend shows
      for (const line of lines) {
        const [x, y, low, high] = line.points[this.axis.key];
        const color = css(`--line-${line.group % COLORS}`);
        const width = { main: 2.2, thin: 1, faint: 0.8 }[line.style];
        const shared = { stroke: color, spanGaps: true, dash: DASHES[Math.floor(line.group / COLORS) % 3], points: { show: false } };
        const columns = [x.map((value) => value / size), y];
        const index = series.length;
        if (!this.main.has(line.group) || line.style === "main") this.main.set(line.group, index);
        const few = line.style === "main" && y.length <= 40;
        series.push({
          ...shared, width, alpha: line.style === "faint" ? 0.55 : 1,
          points: { show: few || y.length === 1, size: 6, fill: color },
          paths: line.steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
        });
        if (low) {
          const faded = color + (line.style === "main" ? "38" : "22");
          series.push({ ...shared, width: 0 }, { ...shared, width: 0 });
          bands.push({ series: [index + 2, index + 1], fill: faded });
          columns.push(low, high);
        }
        tables.push(columns);
      }
      const data = tables.length ? uPlot.join(tables) : [[]];
      const label = this.axis.label + (name ? ` (${name})` : "");
      const grid = { stroke: css("--rule"), width: 1 };
      const decades = (u, ticks) => ticks.map((tick) => (Number.isInteger(Math.round(Math.log10(tick) * 1e9) / 1e9) ? tick : null));
      const yGrid = this.data.log ? { ...grid, filter: decades } : grid;
      const axis = { stroke: css("--dim"), grid, ticks: grid, font: "13px system-ui, sans-serif", labelFont: "13px system-ui, sans-serif" };
      const options = {
        ...this.size(), series, bands, legend: { show: false },
        scales: { x: { time: false }, y: this.data.log ? { distr: 3 } : {} },
        axes: [
          { ...axis, label, labelSize: 22, size: 32, values: (u, ticks) => ticks.map((tick) => tick.toLocaleString("en")) },
          { ...axis, grid: yGrid, ticks: yGrid, label: this.data.label, labelSize: 24, size: 62, values: (u, ticks) => ticks.map((tick) => (tick == null ? "" : number(tick))) },
        ],
        cursor: { dataIdx: nearest, drag: { x: true, y: false, dist: 4 }, points: { size: 7 } },
        hooks: { setCursor: [(u) => this.show(u)] },
      };
      if (this.plot) this.plot.destroy();
      this.plot = new uPlot(options, data, this.area);
      this.figure.dataset.drawn = String(lines.length);
    }

    // Show the values at the cursor in the legend.
    show(u) {
      const isInside = u.cursor.idx != null && u.cursor.left >= 0;
      const x = isInside ? u.posToVal(u.cursor.left, "x") : null;
      const text = this.unit ? `${this.unit} ` : "";
      this.figure.querySelector(".position").textContent = isInside ? `at ${number(x)} ${text}${this.axis.label}` : "";
      this.figure.querySelectorAll(".legend li").forEach((item) => {
        const output = item.querySelector("output"), index = this.main.get(Number(item.querySelector("input").dataset.group));
        const at = isInside && index !== undefined ? u.cursor.idxs[index] : null;
        output.textContent = at == null ? "" : number(u.data[index][at]);
      });
    }

    key(event) {
      const u = this.plot, { min, max } = u.scales.x, width = u.over.clientWidth;
      const left = u.cursor.left >= 0 ? u.cursor.left : 0;
      const zoom = (factor) => {
        const middle = u.cursor.left >= 0 ? u.posToVal(left, "x") : (min + max) / 2;
        u.setScale("x", { min: middle - (middle - min) * factor, max: middle + (max - middle) * factor });
      };
      const actions = {
        ArrowLeft: () => u.setCursor({ left: Math.max(left - width / 50, 0), top: 5 }),
        ArrowRight: () => u.setCursor({ left: Math.min(left + width / 50, width), top: 5 }),
        Home: () => u.setCursor({ left: 0, top: 5 }),
        End: () => u.setCursor({ left: width, top: 5 }),
        "+": () => zoom(0.7),
        "-": () => zoom(1 / 0.7),
        0: () => this.draw(),
      };
      if (actions[event.key] && !event.ctrlKey && !event.metaKey) { event.preventDefault(); actions[event.key](); }
    }
  }

  const charts = [...document.querySelectorAll(".chart")].map((figure) => new Chart(figure));
  const redraw = () => charts.forEach((chart) => chart.draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", () => { document.documentElement.dataset.theme = "light"; redraw(); });
  addEventListener("afterprint", () => { delete document.documentElement.dataset.theme; redraw(); });

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.querySelector("button")?.addEventListener("click", () => {
      const isDescending = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
      const value = (row) => row.cells[column].dataset.number;
      const compare = (a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x !== undefined && y !== undefined) return Number(x) - Number(y);
        if (x !== undefined || y !== undefined) return (x === undefined ? 1 : -1) * (isDescending ? -1 : 1); // missing: last
        return a.cells[column].textContent.localeCompare(b.cells[column].textContent, "en", { numeric: true });
      };
      const rows = [...table.tBodies[0].rows].sort((a, b) => (isDescending ? -1 : 1) * compare(a, b));
      table.tBodies[0].append(...rows);
    }));
  }

  // Limits of a front leave out members that are worse in one objective.
  for (const figure of document.querySelectorAll(".front")) {
    const limits = [...figure.querySelectorAll("input[type=range]")];
    const items = [...figure.querySelectorAll("[data-shares]")].map((item) => [item, item.dataset.shares.split(" ").map(Number)]);
    const update = () => {
      for (const limit of limits) {
        const [worst, best, share] = [limit.dataset.worst, limit.dataset.best, limit.value].map(Number);
        limit.previousElementSibling.textContent = number(worst + share * (best - worst));
      }
      for (const [item, shares] of items) item.classList.toggle("left-out", limits.some((limit, i) => shares[i] < Number(limit.value) - 1e-4));
      figure.querySelector(".kept").textContent = figure.querySelectorAll("tbody tr:not(.left-out)").length;
    };
    limits.forEach((limit) => limit.addEventListener("input", update));
  }

  // Links to a run open its block.
  const reveal = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && target.tagName === "DETAILS") target.open = true;
  };
  addEventListener("hashchange", reveal);
  reveal();

  // hpc-es watch: load the page again when the runs have changed.
  const seconds = Number(document.body.dataset.refresh);
  if (seconds) {
    let version = document.body.dataset.version;
    setInterval(async () => {
      try {
        const answer = await fetch("version", { cache: "no-store" });
        const text = answer.ok ? await answer.text() : version;
        if (text !== version) location.reload();
        version = text;
      } catch { /* the server has ended: the page stays as it is */ }
    }, seconds * 1000);
  }
})();
