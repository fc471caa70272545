// <zero-calculator>: bytes of training state on a rank, and whether they fit into a GPU.
//
// A classic deferred script: it runs from file:// too, where ES modules are blocked. The formulas are
// those of zerolab.accounting, and tests/site/test_calculator.py holds the one to the other. Names,
// tables and parameter counts are not here: calculator-data.js is written from zerolab.accounting
// when the book is built.
//
// Attributes set where it starts: model or params, precision, strategy, ranks, gpu, and hide, which
// names controls to leave out. The page's hash has the same names and goes before the attributes;
// on an element with an id they are prefixed with it and a dot.
"use strict";

(() => {
  const data = globalThis.zerolabCalculatorData;

  // ---- Accounting. Bytes are BigInt: 10^15 parameters of 18 bytes pass 2^53. ----

  const STAGES = Object.keys(data.strategies);
  const STATES = ["parameters", "gradients", "optimizer"];
  const MOST_PARAMETERS = BigInt(data.mostParameters);

  const ceilDiv = (a, b) => (a + b - 1n) / b;

  /** Bytes on one rank: memory.model_states. */
  function modelStates(parameters, strategy, ranks, precision) {
    const elements = { whole: parameters, shard: ceilDiv(parameters, BigInt(ranks)) };
    const states = {};
    for (const state of STATES) {
      states[state] =
        BigInt(data.precisions[precision][state]) * elements[data.strategies[strategy].keeps[state]];
    }
    states.total = states.parameters + states.gradients + states.optimizer;
    return states;
  }

  /** Bytes that a rank sends in a step: traffic.wire_bytes. */
  function wireBytes(parameters, strategy, ranks, precision) {
    const { passes } = data.strategies[strategy];
    const policy = data.precisions[precision];
    const sent = ceilDiv(parameters, BigInt(ranks)) * BigInt(ranks - 1);
    return sent * BigInt(passes.gradients * policy.gradients + passes.parameters * policy.parameters);
  }

  /** Bytes to spare, and the least change that fits: verdict.verdict, where the rule is explained. */
  function verdict(parameters, chosen, capacity) {
    const total = (choice) =>
      modelStates(parameters, choice.strategy, choice.ranks, choice.precision).total;
    const fits = (choice) => total(choice) <= capacity;
    const found = { spare: capacity - total(chosen), keepingPrecision: null, keepingRanks: null };
    if (found.spare >= 0n) return found;
    const stages = STAGES.slice(STAGES.indexOf(chosen.strategy));

    for (const strategy of stages) {
      const wider = fewestRanks({ ...chosen, strategy }, fits);
      if (wider && (!found.keepingPrecision || wider.ranks < found.keepingPrecision.ranks)) {
        found.keepingPrecision = wider;
      }
    }
    if (found.keepingPrecision?.ranks === chosen.ranks) return found;

    const others = Object.keys(data.precisions).filter((name) => name !== chosen.precision);
    const perParameter = (name) => STATES.reduce((sum, state) => sum + data.precisions[name][state], 0);
    others.sort(
      (a, b) =>
        perParameter(b) - perParameter(a) || data.precisions[a].parameters - data.precisions[b].parameters,
    );
    const narrower = others.flatMap((precision) =>
      stages.map((strategy) => ({ ...chosen, strategy, precision })),
    );
    found.keepingRanks = narrower.find(fits) ?? null;
    return found;
  }

  /** The choice on the fewest ranks, no fewer than it has, that fits. More ranks never need more. */
  function fewestRanks(choice, fits) {
    let low = choice.ranks;
    let high = data.mostRanks;
    if (!fits({ ...choice, ranks: high })) return null;
    while (low < high) {
      const middle = Math.floor((low + high) / 2);
      if (fits({ ...choice, ranks: middle })) high = middle;
      else low = middle + 1;
    }
    return { ...choice, ranks: low };
  }

  /** "7e9", "7B", "350M", "7_000_000" as BigInt, null for anything else: quantities.parse_count. */
  function parseCount(text) {
    const match = /^\+?(\d+(?:_\d+)*)(?:\.(\d+))?(?:e([+-]?\d{1,3}))?([kmbt]?)$/i.exec(text.trim());
    if (!match) return null;
    const [, whole, fraction = "", exponent = "0", suffix] = match;
    const digits = BigInt(whole.replaceAll("_", "") + fraction);
    const power = Number(exponent) + { "": 0, K: 3, M: 6, B: 9, T: 12 }[suffix.toUpperCase()] - fraction.length;
    const scale = 10n ** BigInt(Math.abs(power));
    if (power < 0 && digits % scale) return null;
    const count = power < 0 ? digits / scale : digits * scale;
    return count >= 1n && count <= MOST_PARAMETERS ? count : null;
  }

  function parseRanks(text) {
    const count = /^\d+$/.test(text.trim()) ? Number(text) : 0;
    return count >= 1 && count <= data.mostRanks ? count : null;
  }

  // ---- Numbers as text, in the book's style whatever the reader's locale ----

  const grouped = (digits) => digits.replace(/\B(?=(\d{3})+(?!\d))/g, ",");

  /** Two decimals as Python writes them: it rounds 0.125 to even, and toFixed rounds it up. */
  function fixed(value) {
    const [whole, cents] = ((value * 8) % 4 === 1 ? value - 0.001 : value).toFixed(2).split(".");
    return `${grouped(whole)}.${cents}`;
  }

  const gb = (bytes) => fixed(Number(bytes) / 1e9);
  const gib = (bytes) => fixed(Number(bytes) / 2 ** 30);
  const both = (bytes) => `${gb(bytes)} GB (${gib(bytes)} GiB)`;
  const many = (ranks) => `${grouped(String(ranks))} rank${ranks === 1 ? "" : "s"}`;
  const title = (strategy) => data.strategies[strategy].title;

  /** The verdict in one sentence: widgets.verdict_sentence. */
  function sentence(parameters, chosen, capacity) {
    const found = verdict(parameters, chosen, capacity);
    if (found.spare >= 0n) {
      const next = STAGES[STAGES.indexOf(chosen.strategy) + 1];
      const total = (strategy) =>
        modelStates(parameters, strategy, chosen.ranks, chosen.precision).total;
      const freed = next ? total(chosen.strategy) - total(next) : 0n;
      const more = freed > 0n ? `; ${title(next)} would free ${gb(freed)} GB more` : "";
      return `Fits: ${both(found.spare)} remain for activations and buffers${more}.`;
    }
    const change = (to) => {
      const parts = [];
      if (to.strategy !== chosen.strategy) parts.push(title(to.strategy));
      if (to.ranks !== chosen.ranks) parts.push(many(to.ranks));
      if (to.precision !== chosen.precision) parts.push(`precision ${to.precision}`);
      return parts.join(", ");
    };
    const start = `Does not fit: ${both(-found.spare)} too many`;
    const { keepingPrecision, keepingRanks } = found;
    const most = grouped(String(data.mostRanks));
    if (keepingPrecision) {
      const other = keepingRanks ? `; without more ranks: ${change(keepingRanks)}` : "";
      return `${start}; the cheapest change that fits: ${change(keepingPrecision)}${other}.`;
    }
    return keepingRanks
      ? `${start}; in this precision nothing up to ${most} ranks fits, but this does: ${change(keepingRanks)}.`
      : `${start}; nothing up to ${most} ranks fits, and no other precision on ${many(chosen.ranks)}.`;
  }

  // ---- The element ----

  const OWN = "own"; // the model menu's entry for a count that is typed in
  const CUT = 2.5; // bars longer than this many GPUs are cut, so that the GPU's line stays readable
  const DEFAULTS = { model: "llama-2-7b", precision: "mixed", strategy: "ddp", ranks: "8", gpu: "h100-80gb" };
  const CONTROLS = ["model", "params", "precision", "strategy", "ranks", "gpu"];

  const option = (value, label) => `<option value="${value}">${label}</option>`;
  const options = (entries, label) =>
    Object.entries(entries).map(([name, entry]) => option(name, label(name, entry))).join("");
  const menu = (name, label, choices) =>
    `<div class="control" data-control="${name}"><label for="${name}">${label}</label>
     <select id="${name}">${choices}</select></div>`;
  const field = (name, label, mode) =>
    `<div class="control" data-control="${name}"><label for="${name}">${label}</label>
     <input id="${name}" type="text" inputmode="${mode}" autocomplete="off" spellcheck="false"
      aria-describedby="${name}-error"><span class="error" id="${name}-error"></span></div>`;

  const TEMPLATE = document.createElement("template");
  TEMPLATE.innerHTML = `
    <style>
      :host { display: block; container-type: inline-size; margin: 1rem 0 1.5rem; line-height: 1.4;
        font-variant-numeric: tabular-nums; color: var(--pst-color-text-base, CanvasText);
        --line: var(--pst-color-text-muted, GrayText); }
      :host([hidden]), [hidden] { display: none !important; }
      * { box-sizing: border-box; }
      .controls { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: .6rem 1rem; }
      label { display: block; font-size: .85rem; font-weight: 600; }
      select, input { width: 100%; min-height: 2.5rem; padding: .3rem .5rem; font: inherit; color: inherit;
        background: var(--pst-color-background, Canvas); border: 1px solid var(--line); border-radius: .25rem; }
      input[aria-invalid="true"] { border: 2px solid var(--pst-color-danger, #b00020); }
      .error { font-size: .85rem; }
      :focus-visible { outline: 3px solid var(--pst-color-primary, Highlight); outline-offset: 2px; }
      .verdict { margin: 1rem 0; padding: .6rem .8rem; border-left: .35rem solid var(--pst-color-danger, #b00020);
        background: var(--pst-color-surface, transparent); }
      .verdict.fits { border-left-color: var(--pst-color-success, #28704f); }
      .verdict::before { content: "✗ "; font-weight: 700; }
      .verdict.fits::before { content: "✓ "; }
      .verdict.unclear { border-left-color: var(--line); }
      .verdict.unclear::before { content: "? "; }
      .result { display: grid; gap: 1rem 2rem; align-items: start; }
      @container (min-width: 40rem) { .result { grid-template-columns: minmax(18rem, 1fr) minmax(0, auto); } }
      .key { display: flex; flex-wrap: wrap; gap: .1rem .7rem; margin: 0 0 .5rem; padding: 0; list-style: none; font-size: .8rem; }
      .key i { display: inline-block; width: .8rem; height: .8rem; margin-right: .3rem; border: 1px solid currentColor; }
      .key .limit { width: 0; border-width: 0 0 0 3px; vertical-align: -.1rem; }
      .parameters { background: #0072b2; }
      .gradients { background: #e69f00; }
      .optimizer { background: #56b4e9; }
      .key, .bar, i { print-color-adjust: exact; -webkit-print-color-adjust: exact; forced-color-adjust: none; }
      .row { padding: .25rem .5rem; border-left: 3px solid transparent; }
      .row.chosen { border-left-color: currentColor; background: var(--pst-color-surface, transparent); }
      .row.chosen .name { font-weight: 700; }
      .name { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 .6rem; font-size: .85rem; }
      .track { position: relative; height: 1.3rem; margin: .25rem 0; }
      .bar { display: flex; height: 100%; overflow: hidden; }
      .bar span { flex: none; border: 1px solid var(--pst-color-text-base, CanvasText); border-left-width: 0; }
      .bar span:first-child { border-left-width: 1px; }
      .bar.cut { clip-path: polygon(0 0, 100% 0, calc(100% - .5rem) 33%, 100% 66%, calc(100% - .5rem) 100%, 0 100%); }
      .track .limit { position: absolute; top: -.2rem; bottom: -.2rem; width: 3px; margin-left: -1.5px;
        background: var(--pst-color-text-base, CanvasText); outline: 1px solid var(--pst-color-background, Canvas);
        print-color-adjust: exact; -webkit-print-color-adjust: exact; }
      .scroll { overflow-x: auto; }
      table { border-collapse: collapse; font-size: .85rem; }
      caption { padding-bottom: .3rem; text-align: left; font-weight: 600; color: inherit; }
      th, td { padding: .25rem .5rem; text-align: right; white-space: nowrap; }
      th:first-child { padding-left: 0; text-align: left; font-weight: 400; }
      thead th { font-weight: 600; border-bottom: 2px solid var(--line); }
      tbody tr { border-bottom: 1px solid var(--pst-color-border, var(--line)); }
      tr.total * { font-weight: 700; }
      @container (max-width: 25rem) { table { font-size: .8rem; } th, td { padding: .25rem .3rem; } }
      .note { margin: .8rem 0 0; font-size: .85rem; }
      a { color: var(--pst-color-link, LinkText); }
      .spoken { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
      @media (prefers-reduced-motion: no-preference) { .bar span, .track .limit { transition: width .15s, left .15s; } }
      @media print { .controls, .result { break-inside: avoid; } .share { display: none; } }
    </style>
    <form class="controls" aria-label="Set-up">
      ${menu("model", "Model", option(OWN, "own number") + options(data.models, (name) => name))}
      ${field("params", "Parameters", "text")}
      ${menu("precision", "Precision", options(data.precisions, (name, policy) =>
        `${name}: ${STATES.map((state) => policy[state]).join(" + ")}`))}
      ${menu("strategy", "Strategy", options(data.strategies, (name, strategy) => strategy.title))}
      ${field("ranks", "Ranks", "numeric")}
      ${menu("gpu", "GPU", options(data.gpus, (name) => name))}
    </form>
    <p class="verdict"></p>
    <p class="spoken" role="status"></p>
    <div class="result">
      <div class="chart" role="img">
        <ul class="key">${STATES.map((state) => `<li><i class="${state}"></i>${state}</li>`).join("")}
          <li><i class="limit"></i><span class="gpu"></span></li></ul>
        ${STAGES.map((name) => `<div class="row" data-strategy="${name}">
          <div class="name"><span>${title(name)}</span><span class="size"></span></div>
          <div class="track"><div class="bar">${STATES.map((state) => `<span class="${state}"></span>`).join("")}</div>
          <div class="limit"></div></div></div>`).join("")}
      </div>
      <div class="scroll" tabindex="0" role="region" aria-label="Table of bytes">
        <table><caption></caption>
          <thead><tr><th scope="col">on a rank</th><th scope="col">bytes</th><th scope="col">GB</th><th scope="col">GiB</th></tr></thead>
          <tbody>${[...STATES, "total", "sent a step"].map((row) =>
            `<tr${row === "total" ? ' class="total"' : ""}><th scope="row">${row}</th><td></td><td></td><td></td></tr>`).join("")}</tbody>
        </table>
      </div>
    </div>
    <p class="note"><span class="cut-note" hidden>Jagged bars are cut: they are longer than ${CUT} GPUs. </span><a class="share">Link to this set-up</a></p>`;

  class ZeroCalculator extends HTMLElement {
    /** What the tests hold to zerolab.accounting. */
    static accounting = { modelStates, wireBytes, verdict, sentence, parseCount };

    connectedCallback() {
      if (!this.shadowRoot) {
        this.attachShadow({ mode: "open" }).append(TEMPLATE.content.cloneNode(true));
        this.form = this.shadowRoot.querySelector("form");
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

    /** Set the controls from the hash, the attributes and the defaults, the first that says something. */
    read() {
      const hash = new URLSearchParams(location.hash.slice(1));
      const said = (name) => hash.get(this.prefix + name) ?? this.getAttribute(name);
      for (const name of ["precision", "strategy", "gpu"]) {
        const control = this.$(`#${name}`);
        control.value = said(name);
        if (control.selectedIndex < 0) control.value = DEFAULTS[name];
      }
      this.$("#ranks").value = said("ranks") ?? DEFAULTS.ranks;
      const count = hash.get(this.prefix + "params") ?? (hash.has(this.prefix + "model") ? null : this.getAttribute("params"));
      if (count !== null) this.setCount(count);
      else this.setModel(said("model"));
      this.hide = (said("hide") ?? "").split(/[\s,]+/).filter((name) => CONTROLS.includes(name));
      for (const control of this.shadowRoot.querySelectorAll("[data-control]")) {
        control.hidden = this.hide.includes(control.dataset.control);
      }
      this.form.hidden = this.hide.length === CONTROLS.length;
      this.show();
    }

    setModel(name) {
      const known = Object.hasOwn(data.models, name ?? "") ? name : DEFAULTS.model;
      this.$("#model").value = known;
      this.$("#params").value = grouped(String(data.models[known])).replaceAll(",", "_");
    }

    /** A typed count; the menu shows the model that has exactly as many, if one does. */
    setCount(text) {
      this.$("#params").value = text;
      this.nameCount();
    }

    nameCount() {
      const count = parseCount(this.$("#params").value);
      const named = Object.keys(data.models).find((name) => BigInt(data.models[name]) === count);
      this.$("#model").value = named ?? OWN;
    }

    edited(control) {
      if (control.id === "model" && control.value !== OWN) this.setModel(control.value);
      if (control.id === "params") this.nameCount();
      this.show();
    }

    /** This page's hash with this element's set-up in it; what others have there stays. */
    hash() {
      const hash = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
      const named = this.$("#model").value !== OWN;
      const values = { hide: this.hide.join(",") };
      for (const name of CONTROLS) values[name] = this.$(`#${name}`).value;
      delete values[named ? "params" : "model"];
      for (const name of [...CONTROLS, "hide"]) {
        const overrides = name === "hide" && this.hasAttribute("hide"); // even when it hides nothing
        if (values[name] || overrides) hash.set(this.prefix + name, values[name].trim());
        else hash.delete(this.prefix + name);
      }
      return `#${hash}`;
    }

    /** Take the controls' values, say what is wrong with them, or show what follows from them. */
    show() {
      const [model, params, precision, strategy, ranksText, gpu] = CONTROLS.map((name) => this.$(`#${name}`).value);
      const parameters = model === OWN ? parseCount(params) : BigInt(data.models[model]);
      const ranks = parseRanks(ranksText);
      this.complain("params", parameters === null && "A whole number from 1 to 1e15, such as 7e9, 7B or 7_000_000.");
      this.complain("ranks", ranks === null && `A whole number from 1 to ${grouped(String(data.mostRanks))}.`);
      this.$(".share").href = this.hash();
      this.$(".result").hidden = parameters === null || ranks === null;
      const line = this.$(".verdict");
      line.classList.toggle("unclear", parameters === null || ranks === null);
      if (parameters === null || ranks === null) {
        line.textContent = "The set-up has a number that cannot be read.";
        this.$("[role=status]").textContent = line.textContent;
        return;
      }
      const chosen = { strategy, ranks, precision };
      const capacity = BigInt(data.gpus[gpu]);
      const { total } = modelStates(parameters, strategy, ranks, precision);
      line.textContent = sentence(parameters, chosen, capacity);
      line.classList.toggle("fits", total <= capacity);
      this.$("[role=status]").textContent =
        `Each rank keeps ${gb(total)} gigabytes, ${gib(total)} gibibytes. ` +
        line.textContent.replaceAll("GiB", "gibibytes").replaceAll("GB", "gigabytes");
      this.draw(parameters, chosen, capacity, gpu);
      this.tabulate(parameters, chosen);
    }

    complain(name, message) {
      this.$(`#${name}`).setAttribute("aria-invalid", String(Boolean(message)));
      this.$(`#${name}-error`).textContent = message || "";
    }

    draw(parameters, chosen, capacity, gpu) {
      const rows = STAGES.map((strategy) =>
        modelStates(parameters, strategy, chosen.ranks, chosen.precision));
      const largest = rows.reduce((most, row) => Math.max(most, Number(row.total)), Number(capacity));
      const end = Math.min(largest, CUT * Number(capacity)) * 1.02;
      const share = (bytes) => `${(100 * Math.max(0, Math.min(1, bytes / end))).toFixed(3)}%`;
      this.$(".key .gpu").textContent = `${gpu}: ${both(capacity)}`;
      STAGES.forEach((strategy, index) => {
        const row = this.$(`.row[data-strategy=${strategy}]`);
        row.classList.toggle("chosen", strategy === chosen.strategy);
        row.querySelector(".size").textContent = `${gb(rows[index].total)} GB · ${gib(rows[index].total)} GiB`;
        let before = 0;
        for (const state of STATES) {
          const size = Math.min(Number(rows[index][state]), end - before);
          row.querySelector(`.${state}`).style.width = share(size);
          row.querySelector(`.${state}`).hidden = size <= 0; // by the cut, nothing is left of it
          before += size;
        }
        row.querySelector(".bar").classList.toggle("cut", Number(rows[index].total) > end);
        row.querySelector(".limit").style.left = share(Number(capacity));
      });
      this.$(".cut-note").hidden = largest <= end;
      const said = STAGES.map((strategy, index) =>
        `${title(strategy)} ${gb(rows[index].total)} GB, ${rows[index].total <= capacity ? "fits" : "does not fit"}`);
      this.$(".chart").setAttribute("aria-label",
        `Stacked bars of the bytes that a rank keeps, against ${gb(capacity)} GB of ${gpu}: ${said.join("; ")}.`);
    }

    tabulate(parameters, { strategy, ranks, precision }) {
      this.$("caption").textContent = `${title(strategy)} on ${many(ranks)}, ${precision}`;
      const states = modelStates(parameters, strategy, ranks, precision);
      const sizes = [...Object.values(states), wireBytes(parameters, strategy, ranks, precision)];
      this.shadowRoot.querySelectorAll("tbody tr").forEach((row, index) => {
        const bytes = sizes[index];
        [grouped(String(bytes)), gb(bytes), gib(bytes)].forEach((text, column) => {
          row.cells[column + 1].textContent = text;
        });
      });
    }
  }

  customElements.define("zero-calculator", ZeroCalculator);
})();
