// <zero-calculator>: what a rank keeps and what a step takes, and whether it fits into a GPU.
//
// Classic deferred scripts run from file:// too, where ES modules are blocked. The formulas are in
// calculator-accounting.js; sentences and figures here are those of zerolab.teaching.calculator.
//
// Attributes set where it starts: a value for each control, and `hide`, which names controls to
// leave out. The page's hash has the same names and goes before the attributes; on an element with
// an id they are prefixed with it and a dot.
"use strict";

(() => {
  const data = globalThis.zerolabCalculatorData;
  const accounting = globalThis.zerolabAccounting;
  const { STAGES, mapped, sum, beside, devicesOf, modelStates, moments, parametersOf, parseCount, peak } = accounting;
  const NAMES = Object.keys(data.controls);
  const OWN = "own"; // the model menu's entry for a count that is typed in
  const CUT = 2.5; // bars longer than this many GPUs are cut, so that the GPU's line stays readable
  const FILLS = {
    memory: { parameters: "#0072b2", gradients: "#e69f00", optimizer: "#56b4e9", activations: "#009e73", buffers: "#cc79a7" },
    time: { compute: "#56b4e9", "tensor parallel": "#0072b2", waiting: "#d55e00", sending: "#009e73" },
  };

  /** Each control's label, group, most, and choices: undefined, or value to label. */
  const CONTROLS = mapped(data.controls, ([label, group, choices, most], name) => {
    const values = typeof choices === "string" ? Object.keys(data[choices]) : choices;
    const labels = Array.isArray(values) ? Object.fromEntries(values.map((value) => [value, value])) : values;
    return { label, group, most, choices: name === "model" ? { [OWN]: "own number", ...labels } : labels };
  });
  const title = (strategy) => CONTROLS.strategy.choices[strategy];
  const perStage = (figure) => mapped(data.strategies, (_, strategy) => figure(strategy));
  const numbers = (sizes) => Object.values(sizes).reduce((total, size) => total + Number(size), 0);

  // ---- Numbers as text, in the book's style whatever the reader's locale ----

  const grouped = (digits) => String(digits).replace(/\B(?=(\d{3})+(?!\d))/g, ",");

  /** Two decimals as Python writes them: it rounds 0.125 to even, and toFixed rounds it up. */
  function fixed(value) {
    if (value < 0) return `-${fixed(-value)}`;
    const [whole, cents] = ((value * 8) % 4 === 1 ? value - 0.001 : value).toFixed(2).split(".");
    return `${grouped(whole)}.${cents}`;
  }

  const gb = (bytes) => fixed(Number(bytes) / 1e9);
  const gib = (bytes) => fixed(Number(bytes) / 2 ** 30);
  const both = (bytes) => `${gb(bytes)} GB (${gib(bytes)} GiB)`;
  const many = (ranks) => `${grouped(ranks)} rank${ranks === 1 ? "" : "s"}`;
  const duration = (seconds) => (seconds >= 1 ? `${fixed(seconds)} s` : `${fixed(1000 * seconds)} ms`);

  // ---- A set-up from the controls' values, and what is said and shown of it ----

  /** The longest sequence that a model takes: a learned position embedding has so many rows. */
  const mostTokens = (model) =>
    (model !== OWN && Number(accounting.shapeOf(model).positions)) || CONTROLS.sequence.most;

  /** {asked} as Controls.asked, or {wrong}: what is accepted, by control. */
  function read(values) {
    const wrong = {};
    const whole = (name) => {
      const least = name === "shown" ? 0 : 1;
      const most = name === "sequence" ? mostTokens(values.model) : CONTROLS[name].most;
      const text = values[name].trim() || (least ? "" : "0");
      const count = /^\d+$/.test(text) ? Number(text) : -1;
      if (count < least || count > most) wrong[name] = `A whole number from ${least} to ${grouped(most)}.`;
      return count;
    };
    const { model, strategy, precision, gpu, link, tensor_link } = values;
    const parameters = model === OWN ? parseCount(values.params) : parametersOf(model);
    if (parameters === null) wrong.params = "A whole number from 1 to 1e15, such as 7e9, 7B or 7_000_000.";
    const chosen = { strategy, ranks: whole("ranks"), precision };
    const asked = { parameters, chosen, gpu, link, tensor_link, setup: null, shown: 0n };
    if (values.count === "peak" && model !== OWN) {
      const counts = ["batch", "sequence", "tensor_parallel", "micro_batches", "shown"].map(whole);
      const [size, sequence, tensor_parallel, micro_batches, shown] = counts;
      const { attention, norm, activation, loss, recompute } = values;
      const shape = accounting.shapeOf(model);
      const splits = (heads) => Number(heads) % tensor_parallel === 0;
      if (!wrong.tensor_parallel && !(splits(shape.heads) && splits(shape.kv_heads))) {
        wrong.tensor_parallel = `A number that divides the ${shape.heads} heads and ${shape.kv_heads} key-value heads.`;
      }
      asked.shown = BigInt(shown) * 2n ** 20n;
      asked.setup = {
        ...chosen,
        shape,
        batch: {
          size: BigInt(size), sequence: BigInt(sequence), tensor_parallel: BigInt(tensor_parallel),
          element: BigInt(data.precisions[precision].parameters), sequence_parallel: values.sequence_parallel === "yes",
        },
        keeping: {
          attention, norm, activation, loss, recompute,
          repeated_kv: values.repeated_kv === "yes", dropout: values.dropout === "yes",
        },
        micro_batches,
      };
    }
    return Object.keys(wrong).length ? { wrong } : { asked };
  }

  const withStrategy = (asked, strategy) => ({
    ...asked, chosen: { ...asked.chosen, strategy }, setup: asked.setup && { ...asked.setup, strategy },
  });

  const sentence = ({ parameters, chosen, gpu, setup }) => {
    const capacity = BigInt(data.gpus[gpu][0]);
    return setup ? peakSentence(setup, capacity) : statesSentence(parameters, chosen, capacity);
  };

  function statesSentence(parameters, chosen, capacity) {
    const { spare, keeping_precision, keeping_ranks } = accounting.verdict(parameters, chosen, capacity);
    if (spare >= 0n) {
      const next = STAGES[STAGES.indexOf(chosen.strategy) + 1];
      const total = (strategy) => modelStates(parameters, strategy, chosen.ranks, chosen.precision).total;
      const freed = next ? total(chosen.strategy) - total(next) : 0n;
      const more = freed > 0n ? `; ${title(next)} would free ${gb(freed)} GB more` : "";
      return `Fits: ${both(spare)} remain for activations and buffers${more}.`;
    }
    const change = (to) =>
      differences([
        [chosen.strategy, to.strategy, title],
        [chosen.ranks, to.ranks, many],
        [chosen.precision, to.precision, (name) => `precision ${name}`],
      ]);
    const start = `Does not fit: ${both(-spare)} too many`;
    if (keeping_precision) {
      const other = keeping_ranks ? `; without more ranks: ${change(keeping_ranks)}` : "";
      return `${start}; the cheapest change that fits: ${change(keeping_precision)}${other}.`;
    }
    const nothing = `nothing up to ${grouped(data.mostRanks)} ranks fits`;
    return keeping_ranks
      ? `${start}; in this precision ${nothing}, but this does: ${change(keeping_ranks)}.`
      : `${start}; ${nothing}, and no other precision on ${many(chosen.ranks)}.`;
  }

  function peakSentence(setup, capacity) {
    const { peak: tightest, needed, spare, change } = accounting.fit(setup, capacity);
    const where = `at the peak (${tightest.name})`;
    const overhead = `up to ${gb(needed - tightest.total)} GB of overhead`;
    if (spare >= 0n) return `Fits: ${both(spare)} remain ${where}, after ${overhead}.`;
    const tight = tightest.total <= capacity;
    const advice = change
      ? `the cheapest change that ${tight ? "surely " : ""}fits: ` +
        differences([
          [setup.strategy, change.strategy, title],
          [setup.batch.size, change.batch.size, (size) => `micro-batch ${size}`],
          [setup.keeping.recompute, change.keeping.recompute, (kind) => `${kind} recomputation`],
          [setup.ranks, change.ranks, many],
        ])
      : "no other stage, micro-batch, recomputation or number of ranks fits";
    return tight
      ? `Tight: ${both(capacity - tightest.total)} remain ${where}, and there may be ${overhead}; ${advice}.`
      : `Does not fit: ${both(-spare)} too many ${where}, with ${overhead}; ${advice}.`;
  }

  const differences = (dials) =>
    dials.filter(([before, after]) => before !== after).map(([, after, write]) => write(after)).join(", ");

  function monitorSentence(shown, setup) {
    const tensors = peak(setup).total;
    const { remainder, low, high, unexplained } = accounting.explain(shown, tensors, devicesOf(setup));
    return `Of ${both(shown)} the peak's tensors are ${gb(tensors)} GB, and ${gb(remainder)} GB remain; overhead is ` +
      `${gb(low)} GB to ${gb(high)} GB, so ${gb(unexplained)} GB are unexplained.`;
  }

  function memoryParts({ parameters, chosen, setup }) {
    if (!setup) {
      const { total, ...states } = modelStates(parameters, chosen.strategy, chosen.ranks, chosen.precision);
      return states;
    }
    const { parts, total } = peak(setup);
    const { parameters: held, gradients, optimizer, activations = 0n, recomputed = 0n } = parts;
    const found = { parameters: held, gradients, optimizer, activations: activations + recomputed };
    return { ...found, buffers: total - sum(found) };
  }

  function memoryLines(asked) {
    const { parameters, chosen, setup } = asked;
    if (!setup) {
      const states = modelStates(parameters, chosen.strategy, chosen.ranks, chosen.precision);
      return { ...states, "sent a step": traffic(asked).bytes };
    }
    const { parts, total } = peak(setup);
    return { ...Object.fromEntries(Object.entries(parts).filter(([, size]) => size)), total };
  }

  const traffic = ({ parameters, chosen, setup }) =>
    setup
      ? accounting.setupTraffic(setup)
      : accounting.flatTraffic(parameters, chosen.strategy, chosen.ranks, chosen.precision);

  function timeParts(asked) {
    if (!asked.setup) {
      const { bytes, messages } = traffic(asked);
      return { sending: accounting.linkSeconds(asked.link, bytes, messages) };
    }
    const { compute, tensor, total } = accounting.stepTime(asked.setup, asked.gpu, asked.link, asked.tensor_link);
    const between = asked.setup.batch.tensor_parallel > 1n ? { "tensor parallel": tensor } : {};
    return { compute, ...between, waiting: Math.max(0, total - compute - tensor) };
  }

  function caption({ chosen: { strategy, ranks, precision }, setup }) {
    const at = setup ? `, at ${peak(setup).name}` : "";
    return `${title(strategy)} on ${many(ranks)}, ${precision}${at}`;
  }

  // ---- The element ----

  function controlHtml(name) {
    const { label, choices } = CONTROLS[name];
    const options = Object.entries(choices ?? {}).map(([value, text]) => `<option value="${value}">${text}</option>`);
    const field = choices
      ? `<select id="${name}">${options.join("")}</select>`
      : `<input id="${name}" type="text" inputmode="${name === "params" ? "text" : "numeric"}" autocomplete="off"
          spellcheck="false" aria-describedby="${name}-error"><span class="error" id="${name}-error"></span>`;
    return `<div data-control="${name}"><label for="${name}">${label}</label>${field}</div>`;
  }

  const controlsHtml = (group) =>
    `<div class="controls">${NAMES.filter((name) => CONTROLS[name].group === group).map(controlHtml).join("")}</div>`;

  const figureHtml = (kind) => `
    <div class="figure ${kind}">
      <div class="chart" role="img">
        <ul class="key">${Object.entries(FILLS[kind]).map(([part, colour]) =>
          `<li data-part="${part}"><i style="background:${colour}"></i>${part}</li>`).join("")}
          ${kind === "memory" ? `<li><i class="limit"></i><span class="gpu"></span></li>` : ""}</ul>
        ${STAGES.map((name) => `<div class="row" data-strategy="${name}">
          <div class="name"><span>${title(name)}</span><span class="size"></span></div>
          <div class="track"><div class="bar">${Object.entries(FILLS[kind]).map(([part, colour]) =>
            `<span data-part="${part}" style="background:${colour}"></span>`).join("")}</div>
          ${kind === "memory" ? `<div class="limit"></div>` : ""}</div></div>`).join("")}
      </div>
      <div class="scroll" tabindex="0" role="region" aria-label="Table of ${kind}"><table></table></div>
    </div>`;

  const TEMPLATE = document.createElement("template");
  TEMPLATE.innerHTML = `
    <style>
      :host { display: block; container-type: inline-size; margin: 1rem 0 1.5rem; line-height: 1.4;
        font-variant-numeric: tabular-nums; color: var(--pst-color-text-base, CanvasText);
        --line: var(--pst-color-text-muted, GrayText); }
      [hidden] { display: none !important; }
      * { box-sizing: border-box; }
      .controls { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .6rem 1rem; margin-bottom: .6rem; }
      label { display: block; font-size: .85rem; font-weight: 600; }
      select, input { width: 100%; min-height: 2.5rem; padding: .3rem .4rem; text-overflow: ellipsis; font: inherit; color: inherit;
        background: var(--pst-color-background, Canvas); border: 1px solid var(--line); border-radius: .25rem; }
      input[aria-invalid="true"] { border: 2px solid var(--pst-color-danger, #b00020); }
      summary { padding: .4rem 0; font-size: .9rem; cursor: pointer; }
      :focus-visible { outline: 3px solid var(--pst-color-primary, Highlight); outline-offset: 2px; }
      .verdict { margin: 1rem 0; padding: .6rem .8rem; border-left: .35rem solid var(--pst-color-danger, #b00020);
        background: var(--pst-color-surface, transparent); }
      .verdict::before { content: "✗ "; font-weight: 700; }
      .verdict.fits { border-color: var(--pst-color-success, #28704f); }
      .verdict.fits::before { content: "✓ "; }
      .verdict.tight { border-color: var(--pst-color-warning, #8a5a00); }
      .verdict.tight::before { content: "! "; }
      .verdict.unclear { border-color: var(--line); }
      .verdict.unclear::before { content: "? "; }
      .figure { display: grid; gap: 1rem 2rem; align-items: start; margin-bottom: 1.5rem; }
      @container (min-width: 48rem) { .figure { grid-template-columns: minmax(17rem, 1fr) minmax(0, auto); } }
      .key { display: flex; flex-wrap: wrap; gap: .1rem .7rem; margin: 0 0 .5rem; padding: 0; list-style: none; font-size: .8rem; }
      .key i { display: inline-block; width: .8rem; height: .8rem; margin-right: .3rem; border: 1px solid currentColor; }
      .key .limit { width: 0; border-width: 0 0 0 3px; vertical-align: -.1rem; }
      .key, .bar, i, .limit { print-color-adjust: exact; }
      .bar, i { forced-color-adjust: none; }
      .row { padding: .25rem .5rem; border-left: 3px solid transparent; }
      .row.chosen { border-left-color: currentColor; background: var(--pst-color-surface, transparent); }
      .row.chosen .name { font-weight: 700; }
      .name { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 .6rem; font-size: .85rem; }
      .track { position: relative; height: 1.3rem; margin: .25rem 0; }
      .bar { display: flex; height: 100%; overflow: hidden; }
      .bar span { flex: none; border: 1px solid var(--pst-color-text-base, CanvasText); }
      .bar span + span { border-left-width: 0; }
      .bar.cut { clip-path: polygon(0 0, 100% 0, calc(100% - .5rem) 33%, 100% 66%, calc(100% - .5rem) 100%, 0 100%); }
      .track .limit { position: absolute; top: -.2rem; bottom: -.2rem; width: 3px; margin-left: -1.5px;
        background: var(--pst-color-text-base, CanvasText); outline: 1px solid var(--pst-color-background, Canvas); }
      .scroll { overflow-x: auto; }
      table { border-collapse: collapse; font-size: .8rem; }
      caption { padding-bottom: .3rem; text-align: left; font-weight: 600; color: inherit; }
      th, td { padding: .25rem .35rem; text-align: right; white-space: nowrap; }
      th:first-child { padding-left: 0; text-align: left; font-weight: 400; }
      th { white-space: normal; }
      thead th { font-weight: 600; vertical-align: bottom; }
      tbody { border-top: 2px solid var(--line); }
      tbody tr { border-bottom: 1px solid var(--pst-color-border, var(--line)); }
      tr.strong * { font-weight: 700; }
      .note { margin: .5rem 0; }
      .note, .error { font-size: .85rem; }
      a { color: var(--pst-color-link, LinkText); }
      .spoken { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
      @media (prefers-reduced-motion: no-preference) { .bar span, .track .limit { transition: width .15s, left .15s; } }
      @media print { .controls, .figure, .row { break-inside: avoid; } .scroll { overflow: visible; } .share, details:not([open]) { display: none; } }
    </style>
    <form aria-label="Set-up">${controlsHtml("states")}${controlsHtml("step")}
      <details><summary>Tensor parallelism, and what autograd keeps</summary>${controlsHtml("more")}</details></form>
    <p class="verdict"></p>
    <p class="spoken" role="status"></p>
    <p class="note monitor"></p>
    <div class="result">${figureHtml("memory")}${figureHtml("time")}</div>
    <p class="note"><span class="cut-note">Jagged bars are cut: they are longer than ${CUT} GPUs. </span><span
      class="own-note">A number of parameters has no activations: for the peak of a step, choose a model. </span><a
      class="share">Link to this set-up</a></p>`;

  class ZeroCalculator extends HTMLElement {
    /** What the tests hold to Python. */
    static words = { read, sentence, statesSentence, peakSentence, monitorSentence, memoryParts, memoryLines, timeParts, traffic };

    connectedCallback() {
      if (!this.shadowRoot) {
        this.attachShadow({ mode: "open" }).append(TEMPLATE.content.cloneNode(true));
        this.form = this.$("form");
        this.form.addEventListener("submit", (event) => event.preventDefault());
        this.form.addEventListener("input", (event) => this.edited(event.target));
        // Not at every keystroke: browsers limit how often a page may change its address.
        this.form.addEventListener("change", () => history.replaceState(history.state, "", this.hash()));
      }
      this.hashChanged = () => this.read();
      addEventListener("hashchange", this.hashChanged);
      this.read();
    }

    disconnectedCallback() {
      removeEventListener("hashchange", this.hashChanged);
    }

    $(selector) {
      return this.shadowRoot.querySelector(selector);
    }

    get prefix() {
      return this.id ? `${this.id}.` : "";
    }

    get values() {
      return Object.fromEntries(NAMES.map((name) => [name, this.$(`#${name}`).value]));
    }

    /** Set the controls from the hash, the attributes and the defaults, the first that says something. */
    read() {
      const hash = new URLSearchParams(location.hash.slice(1));
      const said = (name) => hash.get(this.prefix + name) ?? this.getAttribute(name);
      for (const name of NAMES) {
        const control = this.$(`#${name}`);
        control.value = said(name) ?? data.defaults[name];
        if (control.selectedIndex < 0) control.value = data.defaults[name];
      }
      const overridden = hash.has(`${this.prefix}model`) && !hash.has(`${this.prefix}params`);
      const count = overridden ? null : said("params");
      if (count !== null) this.nameCount(count);
      else this.setModel(said("model"));
      if (said("sequence") === null) this.fitSequence();
      this.hide = (said("hide") ?? "").split(/[\s,]+/).filter((name) => NAMES.includes(name));
      this.show();
    }

    setModel(name) {
      const known = Object.hasOwn(data.models, name ?? "") ? name : data.defaults.model;
      this.$("#model").value = known;
      this.$("#params").value = grouped(parametersOf(known)).replaceAll(",", "_");
    }

    /** A typed count; the menu shows the model that has exactly as many, if one does. */
    nameCount(text) {
      const count = parseCount(text);
      const has = (name) => name !== OWN && parametersOf(name) === count;
      const current = this.$("#model").value;
      this.$("#params").value = text;
      this.$("#model").value = has(current) ? current : (Object.keys(data.models).find(has) ?? OWN);
    }

    /** Shorten a sequence that the model does not take. */
    fitSequence() {
      const field = this.$("#sequence");
      const most = mostTokens(this.$("#model").value);
      if (Number(field.value) > most) field.value = most;
    }

    edited(control) {
      if (control.id === "model" && control.value !== OWN) this.setModel(control.value);
      if (control.id === "params") this.nameCount(control.value);
      if (control.id === "model" || control.id === "params") this.fitSequence();
      this.show();
    }

    /** This page's hash with this element's set-up in it; what others have there stays. */
    hash() {
      const hash = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
      const values = { ...this.values, hide: this.hide.join(",") };
      delete values[values.model === OWN ? "model" : "params"];
      for (const name of [...NAMES, "hide"]) {
        const overrides = name === "hide" && this.hasAttribute("hide"); // even when it hides nothing
        if (values[name] || overrides) hash.set(this.prefix + name, values[name].trim());
        else hash.delete(this.prefix + name);
      }
      return `#${hash}`;
    }

    /** Take the controls' values, say what is wrong with them, or show what follows from them. */
    show() {
      const { values } = this;
      const { asked, wrong = {} } = read(values);
      for (const name of NAMES) {
        const control = this.$(`[data-control=${name}]`);
        const idle = CONTROLS[name].group !== "states" && (values.count !== "peak" || values.model === OWN);
        control.hidden = idle || this.hide.includes(name);
        const error = control.querySelector(".error");
        if (error) {
          error.textContent = wrong[name] ?? "";
          error.previousElementSibling.setAttribute("aria-invalid", String(name in wrong));
        }
      }
      for (const group of this.shadowRoot.querySelectorAll("details, form")) {
        group.hidden = !group.querySelector("[data-control]:not([hidden])");
      }
      this.$(".share").href = this.hash();
      this.$(".result").hidden = !asked;
      this.$(".own-note").hidden = values.count !== "peak" || values.model !== OWN;
      const line = this.$(".verdict");
      line.textContent = asked ? sentence(asked) : "The set-up has a number that cannot be read.";
      const kind = { F: "fits", T: "tight", D: "" }[line.textContent[0]];
      line.className = `verdict ${asked ? kind : "unclear"}`;
      const monitor = asked?.shown ? monitorSentence(asked.shown, asked.setup) : "";
      this.$(".monitor").textContent = monitor;
      this.$(".monitor").hidden = !monitor;
      const total = asked ? numbers(memoryParts(asked)) : 0;
      const kept = asked ? `Each rank keeps ${gb(total)} GB, ${gib(total)} GiB${asked.setup ? " at the peak" : ""}. ` : "";
      this.$("[role=status]").textContent =
        (kept + line.textContent).replaceAll("GiB", "gibibytes").replaceAll("GB", "gigabytes");
      if (!asked) return;
      this.showMemory(asked);
      this.showTime(asked);
    }

    showMemory(asked) {
      const capacity = BigInt(data.gpus[asked.gpu][0]);
      const bars = perStage((strategy) => memoryParts(withStrategy(asked, strategy)));
      this.$(".gpu").textContent = `${asked.gpu}: ${both(capacity)}`;
      const said = STAGES.map((strategy) => {
        const total = numbers(bars[strategy]);
        return `${title(strategy)} ${gb(total)} GB, ${total <= capacity ? "fits" : "does not fit"}`;
      });
      const text = `Bytes on a rank, against ${both(capacity)} of ${asked.gpu}: ${said.join("; ")}.`;
      const cut = this.draw("memory", asked, bars, text, (total) => `${gb(total)} GB · ${gib(total)} GiB`, Number(capacity));
      this.$(".cut-note").hidden = !cut;

      const line = (name, bytes) => [name, gb(bytes), gib(bytes), grouped(bytes)];
      const groups = [Object.entries(memoryLines(asked)).map(([name, bytes]) => line(name, bytes))];
      if (asked.setup) {
        const overhead = Object.entries(beside(peak(asked.setup).total, devicesOf(asked.setup)));
        groups.push(overhead.map(([name, { low, high }]) =>
          [`${name}, range`, `${gb(low)}–${gb(high)}`, `${gib(low)}–${gib(high)}`, ""]));
        groups.push(moments(asked.setup).map(({ name, total }) => line(`at ${name}`, total)));
      }
      this.tabulate("memory", caption(asked), ["on a rank", "GB", "GiB", "bytes"], groups, "total");
    }

    showTime(asked) {
      const each = perStage((strategy) => withStrategy(asked, strategy));
      const bars = perStage((strategy) => timeParts(each[strategy]));
      const what = `${asked.setup ? "A step's time" : "Time to send a step's bytes"} on ${asked.link}`;
      const said = STAGES.map((strategy) => `${title(strategy)} ${duration(numbers(bars[strategy]))}`);
      this.draw("time", asked, bars, `${what}: ${said.join("; ")}.`, duration);

      const parts = Object.keys(bars.ddp);
      const rows = STAGES.map((strategy) => {
        const { bytes, messages } = traffic(each[strategy]);
        const times = parts.map((part) => duration(bars[strategy][part]));
        return [title(strategy), gb(bytes), grouped(messages), ...times];
      });
      this.tabulate("time", what, ["strategy", "sent, GB", "messages", ...parts], [rows], title(asked.chosen.strategy));
    }

    /** Bars to scale; true where one is cut for being much longer than the limit. */
    draw(kind, asked, bars, text, write, limit) {
      const chart = this.$(`.${kind} .chart`);
      chart.setAttribute("aria-label", text);
      const longest = Math.max(...STAGES.map((strategy) => numbers(bars[strategy])), limit ?? 0);
      const end = limit ? Math.min(longest, CUT * limit) * 1.02 : longest || 1;
      const share = (size) => `${((100 * size) / end).toFixed(3)}%`;
      for (const part of chart.querySelectorAll(".key [data-part]")) part.hidden = !(part.dataset.part in bars.ddp);
      for (const strategy of STAGES) {
        const row = chart.querySelector(`[data-strategy=${strategy}]`);
        const total = numbers(bars[strategy]);
        row.classList.toggle("chosen", strategy === asked.chosen.strategy);
        row.querySelector(".size").textContent = write(total);
        let before = 0;
        for (const bar of row.querySelectorAll(".bar [data-part]")) {
          const size = Math.min(Number(bars[strategy][bar.dataset.part] ?? 0), end - before);
          bar.style.width = share(size);
          bar.hidden = size <= 0; // there is none, or the cut has left nothing of it
          before += size;
        }
        row.querySelector(".bar").classList.toggle("cut", total > end);
        if (limit) row.querySelector(".limit").style.left = share(limit);
      }
      return longest > end;
    }

    /** Rows in groups with a line between; the row of that name is strong. */
    tabulate(kind, text, heads, groups, strong) {
      const rowHtml = ([name, ...cells]) =>
        `<tr${name === strong ? ' class="strong"' : ""}><th scope="row">${name}</th>${cells.map((cell) => `<td>${cell}</td>`).join("")}</tr>`;
      const body = groups.map((rows) => `<tbody>${rows.map(rowHtml).join("")}</tbody>`);
      const head = heads.map((name) => `<th scope="col">${name}</th>`).join("");
      this.$(`.${kind} table`).innerHTML = `<caption>${text}</caption><thead><tr>${head}</tr></thead>${body.join("")}`;
    }
  }

  customElements.define("zero-calculator", ZeroCalculator);
})();
