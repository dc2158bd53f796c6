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

  // The members of an archive as cells, points, or lines across parallel axes; a click shows one of them.
  const VIRIDIS = ["#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725"]
    .map((text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16)));
  const mix = (share) => {
    const place = Math.min(Math.max(share, 0), 1) * (VIRIDIS.length - 1), left = Math.min(Math.floor(place), VIRIDIS.length - 2);
    return `rgb(${VIRIDIS[left].map((part, index) => Math.round(part + (VIRIDIS[left + 1][index] - part) * (place - left)))})`;
  };

  class ArchiveMap {
    constructor(figure) {
      this.figure = figure;
      this.data = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
      this.canvas = figure.querySelector("canvas");
      this.selected = null;
      const { names, shape, values, sign } = this.data;
      this.kind = names.length > 2 ? "lines" : names.length === 2 && shape.length ? "cells" : "points";
      const ordered = values.map((value) => sign * value).sort((a, b) => a - b);
      this.worst = ordered[Math.floor(0.01 * ordered.length)] ?? 0;
      this.best = ordered[ordered.length - 1] ?? 1;
      this.canvas.addEventListener("click", (event) => {
        const box = this.canvas.getBoundingClientRect();
        this.choose(this.nearest(event.clientX - box.left, event.clientY - box.top));
      });
      this.canvas.addEventListener("keydown", (event) => this.key(event));
      new ResizeObserver(() => { if (this.canvas.clientWidth !== this.width) this.draw(); }).observe(this.canvas);
      this.draw();
    }

    share(axis, value) {
      const { low, high } = this.data;
      return Math.min(Math.max((value - low[axis]) / (high[axis] - low[axis]), 0), 1);
    }

    // The middle of a member in the picture; of a line, its height at each axis.
    at(index) {
      const { names, cells, shape, measures, values, sign } = this.data;
      if (this.kind === "lines") return names.map((_, axis) => this.place(axis / (names.length - 1), this.share(axis, measures[index][axis])));
      if (this.kind === "cells") return [this.place((cells[index][0] + 0.5) / shape[0], (cells[index][1] + 0.5) / shape[1])];
      const height = names.length === 2 ? this.share(1, measures[index][1]) : (sign * values[index] - this.worst) / (this.best - this.worst || 1);
      return [this.place(this.share(0, measures[index][0]), Math.min(Math.max(height, 0), 1))];
    }

    place(x, y) { return [this.left + x * this.inner[0], this.top + (1 - y) * this.inner[1]]; }

    color(index) { return mix((this.data.sign * this.data.values[index] - this.worst) / (this.best - this.worst || 1)); }

    draw() {
      const { names, low, high, shape, members } = this.data, scale = devicePixelRatio || 1;
      this.width = this.canvas.clientWidth || 600;
      const height = Math.min(this.width, 480);
      [this.left, this.top] = [64, 12];
      this.inner = [this.width - this.left - 24, height - this.top - 44];
      this.canvas.width = this.width * scale;
      this.canvas.height = height * scale;
      this.canvas.style.height = `${height}px`;
      const pen = this.canvas.getContext("2d");
      pen.scale(scale, scale);
      pen.font = "13px system-ui, sans-serif";
      const size = shape.length === 2 ? [this.inner[0] / shape[0], this.inner[1] / shape[1]] : [7, 7];
      for (let index = members.length - 1; index >= 0; index -= 1) this.mark(pen, index, size, this.color(index), 1);
      if (this.selected != null) this.mark(pen, this.selected, size.map((part) => part + 4), css("--text"), 3);
      pen.strokeStyle = css("--dim");
      pen.fillStyle = css("--dim");
      pen.lineWidth = 1;
      if (this.kind === "lines") {
        names.forEach((name, axis) => {
          const [x, y] = this.place(axis / (names.length - 1), 0);
          pen.beginPath(); pen.moveTo(x, this.top); pen.lineTo(x, y); pen.stroke();
          pen.textAlign = axis === 0 ? "left" : axis === names.length - 1 ? "right" : "center";
          pen.fillText(`${name} ${number(low[axis])} to ${number(high[axis])}`, x, y + 18);
        });
      } else {
        pen.strokeRect(this.left, this.top, ...this.inner);
        const [left, bottom] = this.place(0, 0), [right, top] = this.place(1, 1);
        pen.textAlign = "left"; pen.fillText(number(low[0]), left, bottom + 16);
        pen.textAlign = "right"; pen.fillText(number(high[0]), right, bottom + 16);
        pen.textAlign = "center"; pen.fillText(names[0], (left + right) / 2, bottom + 34);
        pen.textAlign = "right";
        const ends = names.length === 2 ? [low[1], high[1]] : [this.data.sign * this.worst, this.data.sign * this.best];
        pen.fillText(number(ends[0]), left - 6, bottom); pen.fillText(number(ends[1]), left - 6, top + 12);
        pen.save(); pen.translate(14, (top + bottom) / 2); pen.rotate(-Math.PI / 2); pen.textAlign = "center";
        pen.fillText(names[1] ?? "value", 0, 0); pen.restore();
      }
      this.figure.dataset.drawn = String(members.length);
    }

    mark(pen, index, size, color, width) {
      const points = this.at(index);
      pen.fillStyle = pen.strokeStyle = color;
      if (this.kind === "lines") {
        pen.lineWidth = width;
        pen.beginPath(); points.forEach(([x, y]) => pen.lineTo(x, y)); pen.stroke();
      } else if (width > 1) {
        pen.lineWidth = 2;
        pen.strokeRect(points[0][0] - size[0] / 2, points[0][1] - size[1] / 2, ...size);
      } else pen.fillRect(points[0][0] - size[0] / 2, points[0][1] - size[1] / 2, size[0] + 0.5, size[1] + 0.5);
    }

    nearest(x, y) {
      let best = null, least = Infinity;
      this.data.members.forEach((_, index) => {
        for (const [px, py] of this.at(index)) {
          const distance = (px - x) ** 2 + (py - y) ** 2;
          if (distance < least) [best, least] = [index, distance];
        }
      });
      return best;
    }

    choose(index) {
      if (index == null) return;
      this.selected = index;
      const { members, values, names, measures, heads, rows, command } = this.data;
      const pairs = heads.length ? heads.map((name, column) => [name, rows[index][column]])
        : [["value", number(values[index])], ...names.map((name, axis) => [name, number(measures[index][axis])])];
      const list = document.createElement("dl");
      for (const [name, text] of [["member", members[index]], ...pairs]) {
        const term = document.createElement("dt"), value = document.createElement("dd");
        term.textContent = name;
        value.textContent = text;
        list.append(term, value);
      }
      const code = document.createElement("code");
      code.textContent = `${command} ${members[index]}`;
      this.figure.querySelector(".member").replaceChildren(list, code);
      this.draw();
    }

    key(event) {
      const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }, step = steps[event.key];
      if (!step || !this.data.members.length) return;
      event.preventDefault();
      const [x, y] = this.at(this.selected ?? 0)[0];
      let best = this.selected ?? 0, least = Infinity;
      this.data.members.forEach((_, index) => {
        const [px, py] = this.at(index)[0], along = (px - x) * step[0] + (py - y) * step[1];
        const across = Math.abs((px - x) * step[1]) + Math.abs((py - y) * step[0]);
        if (along > 0.5 && along + 3 * across < least) [best, least] = [index, along + 3 * across];
      });
      this.choose(best);
    }
  }

  const charts = [...document.querySelectorAll(".chart")].map((figure) => new Chart(figure));
  charts.push(...[...document.querySelectorAll("figure.archive")].map((figure) => new ArchiveMap(figure)));
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

  // Designs: limits of the parallel axes, failed evaluations, and a scatter of two columns.
  for (const figure of document.querySelectorAll(".designs")) {
    const box = figure.querySelector(".show-failed");
    if (box) box.addEventListener("change", () => figure.classList.toggle("with-failed", box.checked));
    const limits = [...figure.querySelectorAll(".brush input")];
    const lines = [...figure.querySelectorAll("path[data-shares]")].map((item) => [item, item.dataset.shares.split(" ").map(Number)]);
    const isOut = (shares) => limits.some((limit) => {
      const share = shares[Number(limit.dataset.axis)], at = Number(limit.value);
      return limit.dataset.end === "low" ? share < at - 1e-4 : share > at + 1e-4;
    });
    const update = () => {
      let kept = 0;
      for (const [item, shares] of lines) { const out = isOut(shares); item.classList.toggle("left-out", out); kept += out ? 0 : 1; }
      figure.querySelector(".kept").textContent = kept;
    };
    limits.forEach((limit) => limit.addEventListener("input", update));
    const scatter = figure.querySelector(".scatter");
    if (!scatter) continue;
    const data = JSON.parse(scatter.querySelector("script").textContent), svg = scatter.querySelector("svg");
    const sides = [...scatter.querySelectorAll("select")];
    const node = (name, attributes, text) => {
      const item = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const [key, value] of Object.entries(attributes)) item.setAttribute(key, value);
      if (text !== undefined) item.textContent = text;
      return item;
    };
    const draw = () => {
      const [x, y] = sides.map((side) => Number(side.value)), items = [];
      items.push(node("rect", { x: 20, y: 28, width: 300, height: 220, class: "frame" }));
      for (let i = data.titles.length - 1; i >= 0; i -= 1) {
        const dot = node("circle", { cx: 28 + 284 * data.shares[x][i], cy: 240 - 204 * data.shares[y][i], r: data.initial[i] ? 5 : 3.5,
          style: data.initial[i] ? `fill: none; stroke: ${data.colors[i]}; stroke-width: 2` : `fill: ${data.colors[i]}` });
        dot.append(node("title", {}, data.titles[i]));
        items.push(dot);
      }
      const [xEnds, yEnds] = [data.ends[x], data.ends[y]];
      items.push(node("text", { x: 20, y: 18, class: "dim" }, `${data.names[y]}: ${yEnds[0]} (bottom) to ${yEnds[1]} (top)`));
      items.push(node("text", { x: 20, y: 266, class: "dim" }, xEnds[0]), node("text", { x: 320, y: 266, "text-anchor": "end", class: "dim" }, xEnds[1]));
      items.push(node("text", { x: 170, y: 286, "text-anchor": "middle", class: "dim" }, data.names[x]));
      svg.replaceChildren(...items);
      scatter.dataset.drawn = String(data.titles.length);
    };
    sides.forEach((side) => side.addEventListener("change", draw));
    draw();
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
