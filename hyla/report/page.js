(function () {
  "use strict";
  const specs = JSON.parse(document.getElementById("plots").textContent);
  const drawn = new Set();
  let printing = false;

  function colours() {
    const style = getComputedStyle(document.documentElement);
    const value = (name) => style.getPropertyValue("--" + name).trim();
    return { ink: value("ink"), soft: value("soft"), line: value("line"), panel: value("panel") };
  }

  // In traces "ink" stands for the colour of text; the layout has all other colours of a theme.
  function inked(thing, ink) {
    if (thing === "ink") return ink;
    if (Array.isArray(thing)) return thing.every((x) => typeof x !== "object") ? thing : thing.map((x) => inked(x, ink));
    if (thing === null || typeof thing !== "object") return thing;
    return Object.fromEntries(Object.entries(thing).map(([k, v]) => [k, k === "color" || typeof v === "object" ? inked(v, ink) : v]));
  }

  // Plotly draws an error of null as 0, a cap at the point; NaN draws nothing.
  function certain(trace) {
    const bars = trace.error_y;
    return bars ? { ...trace, error_y: { ...bars, array: bars.array.map((error) => error ?? NaN) } } : trace;
  }

  function themed(spec, width) {
    const c = colours();
    const layout = {
      margin: { l: 8, r: 12, t: 14, b: 8, pad: 2 }, showlegend: false, hovermode: "closest",
      font: { color: c.ink, size: 12, family: getComputedStyle(document.body).fontFamily },
      paper_bgcolor: c.panel, plot_bgcolor: c.panel, height: spec.height,
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      ...structuredClone(spec.layout),
    };
    for (const key of Object.keys(layout)) {
      if (/^[xy]axis\d*$/.test(key)) {
        layout[key] = { gridcolor: c.line, zerolinecolor: c.line, linecolor: c.soft, tickcolor: c.soft, ...layout[key] };
      }
    }
    if (width) layout.width = width;
    return layout;
  }

  function draw(div) {
    const spec = specs[div.id];
    const hidden = hiddenKeys(div);
    const data = inked(spec.data, colours().ink).map((trace) => ({ ...certain(trace), hoverinfo: "none", visible: !hidden.has(trace.legendgroup) }));
    // Fits A4 and Letter: the layout still has the width of the screen at this moment.
    const width = printing ? (div.parentElement.classList.contains("wide") ? 680 : 335) : undefined;
    const first = !drawn.has(div);
    drawn.add(div);
    Plotly.react(div, data, themed(spec, width), { responsive: true, displayModeBar: false, typesetMath: false });
    if (first) {
      for (const name of ["plotly_hover", "plotly_click"]) div.on(name, tellPoint);
      div.on("plotly_unhover", hush);
    }
  }

  function hiddenKeys(div) {
    const off = div.closest("figure").querySelectorAll('.legend button[aria-pressed="false"]');
    return new Set(printing ? [] : [...off].map((button) => button.dataset.key));
  }

  const plots = [...document.querySelectorAll(".plot")];
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        near.unobserve(entry.target);
        if (!drawn.has(entry.target)) draw(entry.target);
      }
    }
  }, { rootMargin: "800px" });
  plots.forEach((div) => near.observe(div));
  // Draw the rest while the browser is idle, so that a copy of the page has all plots.
  const idle = window.requestIdleCallback || ((work) => setTimeout(work, 50));
  function drawRest() {
    const next = plots.find((div) => !drawn.has(div));
    if (next) { draw(next); idle(drawRest); }
  }
  addEventListener("load", () => idle(drawRest));

  function redraw() { for (const div of drawn) draw(div); }

  // Print shows all plots and all folded parts in light colours.
  function print(on) {
    if (on === printing) return;
    printing = on;
    for (const part of document.querySelectorAll("details")) {
      if (on) { part.dataset.was = part.open; part.open = true; } else { part.open = part.dataset.was === "true"; }
    }
    plots.forEach(draw);
  }
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  matchMedia("print").addEventListener("change", (event) => print(event.matches));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  document.addEventListener("click", (event) => {
    const key = event.target.closest(".legend button");
    if (key) {
      key.setAttribute("aria-pressed", key.getAttribute("aria-pressed") !== "true");
      key.closest("figure").querySelectorAll(".plot").forEach((div) => { if (drawn.has(div)) draw(div); });
    }
    const copy = event.target.closest("button.copy");
    if (copy) copyText(copy);
  });

  function copyText(button) {
    const code = button.parentElement.querySelector("code");
    const done = () => { button.textContent = "copied"; setTimeout(() => { button.textContent = "copy"; }, 1500); };
    const select = () => {
      const range = document.createRange();
      range.selectNodeContents(code);
      const selection = getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      if (document.execCommand("copy")) done();
    };
    if (navigator.clipboard) navigator.clipboard.writeText(code.textContent).then(done, select); else select();
  }

  const box = document.getElementById("about");
  function tell(text, place) {
    box.textContent = text;
    box.hidden = false;
    box.style.left = "0"; // measure its natural width
    const below = place.bottom + 6 + box.offsetHeight < innerHeight;
    box.style.top = (below ? place.bottom + 6 : Math.max(4, place.top - 6 - box.offsetHeight)) + "px";
    box.style.left = Math.max(4, Math.min(place.left, innerWidth - box.offsetWidth - 8)) + "px";
  }

  // Convert a text that was escaped for plotly to plain text.
  function tellPoint(event) {
    const point = event.points[0];
    let text = point.data.hovertext;
    for (const i of [point.pointIndex ?? point.pointNumber].flat()) if (Array.isArray(text)) text = text[i];
    if (typeof text !== "string" || !event.event) return;
    text = text.replaceAll("<br>", "\n").replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
    const x = event.event.clientX, y = event.event.clientY;
    tell(text, { left: x + 12, top: y - 8, bottom: y + 8 });
  }
  function tellCell(cell) {
    tell(cell.dataset.about, cell.getBoundingClientRect());
    cell.setAttribute("aria-describedby", "about");
  }
  function hush() {
    box.hidden = true;
    document.querySelectorAll("[aria-describedby=about]").forEach((cell) => cell.removeAttribute("aria-describedby"));
  }
  for (const [name, end] of [["mouseover", "mouseout"], ["focusin", "focusout"]]) {
    document.addEventListener(name, (event) => { const cell = event.target.closest("[data-about]"); if (cell) tellCell(cell); });
    document.addEventListener(end, (event) => { if (event.target.closest("[data-about]")) hush(); });
  }
  addEventListener("scroll", hush, { passive: true });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hush(); });
})();
