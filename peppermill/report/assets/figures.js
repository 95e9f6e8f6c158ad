"use strict";
/* Every figure as plotly traces and layout, from the run's numbers and the page's colors. */
const Figures = (() => {
  const PERCENT = ",.0%";
  const FEW = 20; // items; the paper's Table 1 drops bins that have no more, and ours are pale

  // plotly reads tags and formulas in texts: what users named must stay text.
  const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", $: "&#36;" };
  const text = (name) => String(name).replace(/[&<>$]/g, (letter) => ENTITIES[letter]);
  const short = (name, most) => text(name.length > most ? name.slice(0, most - 1) + "…" : name);

  function colors() {
    const style = getComputedStyle(document.documentElement);
    const value = (name) => style.getPropertyValue("--" + name).trim();
    const names = ["ink", "soft", "grid", "line", "card", "network", "ensemble", "members", "sure", "timid", "count", "sans"];
    return { ...Object.fromEntries(names.map((name) => [name, value(name)])), series: value("series").split(/\s+/) };
  }

  const axis = (c, more) => ({
    gridcolor: c.grid, linecolor: c.line, zeroline: false, tickcolor: c.line, tickfont: { color: c.soft, size: 12 },
    fixedrange: true, ...more, title: more.title ? { font: { color: c.soft, size: 13 }, standoff: 8, ...more.title } : undefined,
  });

  const layout = (c, more) => ({
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { family: c.sans, size: 13, color: c.ink },
    margin: { l: 48, r: 20, t: 10, b: 40 }, showlegend: false, hovermode: "closest", autosize: true,
    hoverlabel: { bgcolor: c.card, bordercolor: c.line, font: { color: c.ink, size: 13 } }, ...more,
  });

  const upright = (x, y0, y1, color, dash, width = 1.5) =>
    ({ type: "line", x0: x, x1: x, y0, y1, line: { color: color, dash, width }, layer: "above" });

  function sigma(sweep, index, c) {
    const [low, high] = sweep.range, { sigmas } = sweep, here = sigmas[index], value = sweep.ensemble[index];
    const below = value === null || value < low, last = sigmas[sigmas.length - 1];
    const members = { x: [], y: [] };
    for (const member of sweep.members) { members.x.push(...sigmas, null); members.y.push(...member, null); }
    const line = (more) => ({ type: "scatter", mode: "lines", ...more });
    const hover = "σ = %{x:.4g}<br>%{y:.4f}";
    return {
      data: [
        line({ ...members, line: { color: c.members, width: 1 }, opacity: 0.6, hoverinfo: "skip" }),
        line({ x: [0, last], y: [sweep.ensemble[0], sweep.ensemble[0]], line: { color: c.ink, width: 1.2, dash: "dot" }, hoverinfo: "skip" }),
        line({ x: sigmas, y: sweep.mean, line: { color: c.network, width: 2.5, dash: "dash" }, hovertemplate: hover + "<extra>members’ average</extra>" }),
        line({ x: sigmas, y: sweep.ensemble, mode: "lines+markers", line: { color: c.ensemble, width: 3 }, marker: { size: 7, color: c.ensemble }, hovertemplate: hover + "<extra>ensemble</extra>" }),
        line({ x: [here], y: [below ? low : value], mode: "markers", hoverinfo: "skip", cliponaxis: false,
          marker: { size: 18, symbol: below ? "triangle-down" : "circle", color: c.card, line: { color: c.ensemble, width: 5 } } }),
      ],
      layout: layout(c, {
        margin: { l: 56, r: 16, t: 28, b: 44 },
        xaxis: axis(c, { title: { text: "noise σ" }, range: [-0.03 * last, 1.03 * last], tickformat: "~g" }),
        yaxis: axis(c, { range: [low, high], tickformat: ".3f" }),
        shapes: [upright(0, low, high, c.network, "dot"), upright(sweep.star, low, high, c.ensemble, "dashdot")],
        annotations: [mark(0, sweep.star > 0.2 * last ? high : low, "σ = 0", c.network, "left"), mark(sweep.star, high, "σ* = " + Number(sweep.star.toPrecision(3)), c.ensemble, "center")],
      }),
    };
  }

  const mark = (x, y, label, color, anchor) =>
    ({ x, y, text: label, showarrow: false, yanchor: "bottom", xanchor: anchor, font: { color: color, size: 13 } });

  function reliability(table, c, compact) {
    const bins = table.count.map((count, k) => k).filter((k) => table.count[k] > 0);
    const center = (k) => (table.lower[k] + table.upper[k]) / 2, width = (k) => table.upper[k] - table.lower[k];
    const gap = (k) => table.confidence[k] - table.accuracy[k];
    const bars = (chosen, base, height, marker, more) => ({
      type: "bar", x: chosen.map(center), width: chosen.map(width), base: chosen.map(base), y: chosen.map(height),
      marker: { opacity: chosen.map((k) => (table.count[k] > FEW ? 0.9 : 0.35)), ...marker },
      customdata: chosen.map((k) => [table.confidence[k], table.accuracy[k], table.count[k]]),
      hovertemplate: "says %{customdata[0]:.1%}<br>is right %{customdata[1]:.1%}<br>%{customdata[2]:,} items<extra></extra>", ...more,
    });
    const edge = { color: c.card, width: 1 };
    const hatch = (color, shape) => ({ color: "rgba(0,0,0,0)", line: { color, width: 1 }, pattern: { shape, fgcolor: color, bgcolor: "rgba(0,0,0,0)", size: 5, solidity: 0.4 } });
    return {
      data: [
        bars(bins, () => 0, (k) => table.accuracy[k], { color: c.ensemble, line: edge }),
        bars(bins.filter((k) => gap(k) > 0), (k) => table.accuracy[k], gap, hatch(c.sure, "/")),
        bars(bins.filter((k) => gap(k) < 0), (k) => table.confidence[k], (k) => -gap(k),
          { color: c.card, line: { color: c.timid, width: 1 }, pattern: { shape: "\\", fgcolor: c.timid, bgcolor: c.card, size: 5, solidity: 0.4 } }),
        { type: "scatter", mode: "lines", x: [0, 1], y: [0, 1], line: { color: c.ink, width: 1.2, dash: "dash" }, hoverinfo: "skip" },
        bars(bins, () => 0, (k) => table.count[k], { color: c.count, line: edge, opacity: 1 }, { yaxis: "y2", base: undefined }),
      ],
      layout: layout(c, {
        barmode: "overlay", margin: { l: compact ? 44 : 52, r: 20, t: 8, b: 40 },
        xaxis: axis(c, { title: { text: "confidence" }, range: [0, 1], tickformat: PERCENT, anchor: "y2", dtick: compact ? 0.5 : 0.2 }),
        yaxis: axis(c, { title: compact ? undefined : { text: "right" }, range: [0, 1], tickformat: PERCENT, domain: [0.3, 1], dtick: compact ? 0.5 : 0.2 }),
        yaxis2: axis(c, { title: compact ? undefined : { text: "items" }, type: "log", domain: [0, 0.23], range: [-0.3, Math.log10(2 * Math.max(...table.count, 1))], dtick: 1, tickformat: "~s" }),
      }),
    };
  }

  function members(item, c) {
    const counts = new Array(20).fill(0);
    for (const p of item.members) counts[Math.min(19, Math.floor(20 * p))] += 1;
    const top = Math.max(...counts) * 1.1;
    return {
      data: [{ type: "bar", x: counts.map((_, k) => (k + 0.5) / 20), y: counts, width: 0.05, marker: { color: c.count, line: { color: c.card, width: 1 } }, hovertemplate: "%{y} members near %{x:.0%}<extra></extra>" }],
      layout: layout(c, {
        margin: { l: 14, r: 20, t: 4, b: 22 },
        xaxis: axis(c, { range: [-0.01, 1.01], tickvals: [0, 0.5, 1], tickformat: PERCENT, showgrid: false }),
        yaxis: axis(c, { range: [0, top], visible: false }),
        shapes: [upright(item.network, 0, top, c.network, "dash", 3), upright(item.ensemble, 0, top, c.ensemble, "solid", 3)],
      }),
    };
  }

  // Before and after in rows: a line from an open to a filled mark.
  function dumbbells(rows, c, more) {
    const y = rows.map((_, k) => -k);
    const marks = (name, color, symbol, label) => ({
      type: "scatter", mode: "markers", x: rows.map((row) => row[name]), y, customdata: rows.map((row) => row.hover),
      marker: { size: 11, color: rows.map((row) => (name === "before" || !row.clear ? c.card : color)), symbol, line: { color: color, width: 2.5 } },
      hovertemplate: "%{customdata}<br>" + label + " %{x:" + more.format + "}<extra></extra>",
    });
    return {
      data: [
        { type: "scatter", mode: "lines", x: rows.flatMap((row) => [row.before, row.after, null]), y: y.flatMap((v) => [v, v, null]), line: { color: c.members, width: 2 }, hoverinfo: "skip" },
        marks("before", c.network, "circle", "network"), marks("after", c.ensemble, "circle", "after"),
      ],
      layout: layout(c, {
        margin: { l: 20, r: 16, t: 6, b: 36 },
        xaxis: axis(c, { tickformat: more.format, nticks: 5, tickangle: 0 }),
        yaxis: axis(c, { tickvals: y, ticktext: rows.map((row) => row.label), range: [0.6 - rows.length, 0.6], automargin: true }),
      }),
    };
  }

  const classes = (data, c) => dumbbells(
    data.names.map((name, k) => ({ label: short(name, 26), hover: `${text(name)}, ${data.items[k]} items`, before: data.network[k], after: data.ensemble[k], clear: true })), c, { format: ".2f" });

  const change = (runs, score, format, c) => dumbbells(
    runs.map((run, k) => ({ run, k })).filter(({ run }) => run.scores[score]).map(({ run, k }) => ({
      label: String(k + 1), hover: text(run.title), clear: run.scores[score].outcome !== "unclear",
      before: run.scores[score].before, after: run.scores[score].after })), c, { format });

  function gains(runs, titles, c) {
    const dashes = ["solid", "dash", "dot", "dashdot"], shapes = ["circle", "square", "diamond", "cross", "x"];
    const data = runs.map((run, k) => run.sweep && {
      type: "scatter", mode: "lines+markers", text: run.sweep.sigmas.map(() => `${k + 1} · ${short(titles[k], 40)}`), x: run.sweep.sigmas.map((s) => s / (run.sweep.star || 1)),
      y: run.sweep.ensemble.map((value) => (value === null ? null : value - run.sweep.ensemble[0])),
      line: { color: c.series[k % c.series.length], dash: dashes[k % 4], width: 2 }, marker: { size: 6, symbol: shapes[k % 5] },
      hovertemplate: "%{text}<br>%{x:.2f} σ*: %{y:+.4f}<extra></extra>",
    }).filter(Boolean);
    const best = Math.max(1e-3, ...data.flatMap((trace) => trace.y.filter((value) => value !== null)));
    return { data, layout: layout(c, { margin: { l: 56, r: 12, t: 6, b: 36 }, xaxis: axis(c, { title: { text: "σ/σ*" } }), yaxis: axis(c, { range: [-best, 1.15 * best], tickformat: "+.3f" }) }) };
  }

  function curvature(rows, c) {
    const [sigmas, predicted, errors, measured] = [0, 1, 2, 3].map((k) => rows.map((row) => row[k]));
    const edge = (sign) => predicted.map((value, k) => value + 2 * sign * (errors[k] ?? 0));
    const line = (y, more) => ({ type: "scatter", mode: "lines", x: sigmas, y, hoverinfo: "skip", line: { width: 0 }, ...more });
    return {
      data: [
        line(edge(-1), {}), line(edge(1), { fill: "tonexty", fillcolor: c.network + "33" }),
        line(predicted, { line: { color: c.network, width: 2.5, dash: "dash" }, hoverinfo: "all", hovertemplate: "σ = %{x:.3g}<br>predicted %{y:.4g}<extra></extra>" }),
        line(measured, { mode: "markers", marker: { size: 10, color: c.ensemble }, hoverinfo: "all", hovertemplate: "σ = %{x:.3g}<br>measured %{y:.4g}<extra></extra>" }),
      ],
      layout: layout(c, { margin: { l: 60, r: 16, t: 10, b: 44 }, xaxis: axis(c, { title: { text: "noise σ" }, tickformat: "~g" }), yaxis: axis(c, { title: { text: "gain in log-likelihood" }, automargin: true }) }),
    };
  }

  function overfitting(data, c) {
    const pick = (name) => data.map((point) => point[name]);
    return {
      data: [{
        type: "scatter", mode: "markers", x: pick("overfitting"), y: pick("effect"), customdata: data.map((point) => [text(point.name), point.sigma]),
        marker: { size: 11, color: pick("sigma"), colorscale: "Cividis", line: { color: c.card, width: 1 }, colorbar: { title: { text: "σ*", font: { color: c.soft } }, thickness: 12, outlinewidth: 0, tickfont: { color: c.soft, size: 12 }, tickformat: "~g" } },
        hovertemplate: "%{customdata[0]}<br>overfitting %{x:.4g}<br>effect %{y:.4g}<br>σ* = %{customdata[1]:.3g}<extra></extra>",
      }],
      layout: layout(c, { margin: { l: 60, r: 16, t: 10, b: 44 }, xaxis: axis(c, { title: { text: "overfitting: test NLL − training NLL" } }), yaxis: axis(c, { title: { text: "gain in log-likelihood" }, automargin: true }) }),
    };
  }

  function sizes(data, c) {
    const line = (y, more) => ({ type: "scatter", mode: "lines", x: data.sizes, y, hoverinfo: "skip", line: { width: 0 }, ...more });
    const pick = (name) => data.nll.map((estimate) => estimate[name]);
    const network = data.network === null ? [] : [line(data.sizes.map(() => data.network), { line: { color: c.soft, width: 1.5, dash: "dot" } })];
    return {
      data: [
        line(pick("lower"), {}), line(pick("upper"), { fill: "tonexty", fillcolor: c.ensemble + "2b" }), ...network,
        line(pick("value"), { mode: "lines+markers", marker: { size: 8, color: c.ensemble }, line: { color: c.ensemble, width: 2.5 }, hoverinfo: "all", hovertemplate: "%{x} members<br>NLL %{y:.4f}<extra></extra>" }),
      ],
      layout: layout(c, { margin: { l: 60, r: 16, t: 10, b: 44 }, xaxis: axis(c, { title: { text: "members m" }, tickformat: "d" }), yaxis: axis(c, { title: { text: "log-loss, NLL" }, automargin: true }) }),
    };
  }

  function uncertainty(data, c) {
    const bins = data.right.length, width = data.upper / bins, places = data.right.map((_, k) => (k + 0.5) * width);
    const bars = (kind, color, opacity) => {
      const total = data[kind].reduce((sum, count) => sum + count, 0) || 1;
      return {
        type: "bar", x: places, width, y: data[kind].map((count) => count / total), customdata: data[kind], opacity, marker: { color, line: { color: c.card, width: 1 } },
        hovertemplate: `%{customdata:,} ${kind} items near %{x:.3g}<br>%{y:.1%} of the ${kind} ones<extra></extra>`,
      };
    };
    return {
      data: [bars("right", c.ensemble, 0.75), bars("wrong", c.network, 0.6)],
      layout: layout(c, { barmode: "overlay", margin: { l: 44, r: 12, t: 6, b: 30 }, xaxis: axis(c, { range: [0, data.upper], nticks: 5, tickformat: "~g" }), yaxis: axis(c, { tickformat: PERCENT, nticks: 4, rangemode: "tozero" }) }),
    };
  }

  function risk(data, c) {
    const rule = data.rule && data.rule.error !== null ? [data.rule] : [];
    return {
      data: [
        ...data.methods.map((method, k) => ({
          type: "scatter", mode: "lines", name: text(method.name), x: method.risks.map((_, i) => (i + 1) / method.risks.length), y: method.risks,
          line: { color: c.series[k % c.series.length], width: 2 }, hovertemplate: "%{x:.0%} kept<br>%{y:.2%} wrong<extra>%{fullData.name}</extra>",
        })),
        ...rule.map((point) => ({
          type: "scatter", mode: "markers", name: "the rule", x: [point.coverage], y: [point.error], cliponaxis: false,
          marker: { size: 14, color: c.card, line: { color: c.ink, width: 4 } }, hovertemplate: "%{x:.0%} kept<br>%{y:.2%} wrong<extra>the rule</extra>",
        })),
      ],
      layout: layout(c, { margin: { l: 60, r: 16, t: 36, b: 44 }, showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" }, xaxis: axis(c, { title: { text: "coverage" }, tickformat: PERCENT, range: [0, 1.01] }), yaxis: axis(c, { title: { text: "error rate of what is kept" }, tickformat: ".1%", rangemode: "tozero", automargin: true }) }),
    };
  }

  function race(candidates, c) {
    const data = Object.fromEntries(["name", "passes", "nll", "verdict"].map((key) => [key, candidates.map((one) => one[key])]));
    const passes = [...new Set(data.passes)].sort((a, b) => a - b);
    const front = passes.map((most) => Math.min(...data.nll.filter((_, k) => data.passes[k] <= most)));
    const fitted = candidates.filter((one) => one.parameters).map((one) => one.nll);
    data.worst = Math.max(...(fitted.length ? fitted : front)); // the network as it is may lie far above, and is shown at the edge
    const low = Math.min(...data.nll), span = Math.max(data.worst - low, 1e-4), high = data.worst + 0.12 * span;
    const hover = data.name.map((name, k) => `${text(name)}<br>NLL ${data.nll[k].toFixed(4)}<br>${text(data.verdict[k])}`);
    const marks = (picked, more) => ({
      type: "scatter", mode: "markers", x: picked.map((k) => data.passes[k]), y: picked.map((k) => Math.min(data.nll[k], high)),
      customdata: picked.map((k) => hover[k]), hovertemplate: "%{customdata}<extra></extra>", cliponaxis: false, ...more });
    const all = data.name.map((_, k) => k), chosen = all.filter((k) => data.verdict[k] === "chosen"), others = all.filter((k) => !chosen.includes(k));
    const last = Math.max(...data.passes), best = data.nll.indexOf(low), single = data.nll.indexOf(front[0]);
    const label = (k, y, words) => {
      const left = data.passes[k] > Math.sqrt(last), below = !chosen.includes(k); // the choice's own is above, beside the front's step
      return { ...mark(Math.log10(data.passes[k]), y, words, below ? c.soft : c.ensemble, left ? "right" : "left"),
        yanchor: below ? "top" : "bottom", yshift: below ? -8 : 8, xshift: left && !below ? -12 : 0 };
    };
    return {
      data: [
        { type: "scatter", mode: "lines", x: passes, y: front, line: { color: c.ensemble, width: 2.5, shape: "hv" }, hoverinfo: "skip" },
        marks(others, { marker: { size: 9, color: c.members, symbol: others.map((k) => (data.nll[k] > high ? "triangle-up" : "circle")) } }),
        marks(chosen, { marker: { size: 16, color: c.card, line: { color: c.ensemble, width: 5 } } }),
      ],
      layout: layout(c, {
        margin: { l: 60, r: 20, t: 14, b: 44 },
        xaxis: axis(c, { title: { text: "forward passes" }, type: "log", tickvals: passes, range: [-0.06, Math.log10(last) + 0.06] }),
        yaxis: axis(c, { title: { text: "log-loss, NLL" }, range: [low - 0.2 * span, high], automargin: true, tickformat: ".3f" }),
        annotations: [
          ...[...new Set([single, best, ...chosen])].map((k) => label(k, data.nll[k], text(data.name[k]))),
          ...others.filter((k) => data.nll[k] > high).map((k) => ({ ...label(k, high, `${text(data.name[k])}: ${data.nll[k].toFixed(3)}`), yanchor: "middle", xshift: 10, yshift: 0 })),
        ],
      }),
    };
  }

  return { colors, race, sigma, reliability, members, classes, change, gains, curvature, overfitting, sizes, uncertainty, risk };
})();
