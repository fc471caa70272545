// <zero-step>: one recorded training step on four ranks, frame by frame, at the reader's pace.
//
// A classic deferred script: it runs from file:// too, where ES modules are blocked. Frames,
// sentences and questions are not here: step-through-data.js is written from the recording when the
// book is built, by the Python that also checks that its bytes add up. The figure, the table and the
// link to the recording are the element's children, written into the page; this plays above them.
//
// Attribute: strategy, where a page shows one; else the reader chooses. The page's hash has
// step=STRATEGY-FRAME; on an element with an id the name is prefixed with it and a dot.
"use strict";

(() => {
  const data = globalThis.zerolabStepData;
  const { held: HELD, asked: ASKED } = data;
  const RANKS = Array.from({ length: data.ranks }, (_, rank) => rank);
  const TRANSFERS = ["all-gather", "reduce-scatter", "all-reduce"];

  // ---- Numbers and words ----

  const exact = (bytes) => String(bytes).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
  const short = (bytes) =>
    bytes < 1000 ? `${bytes} B` : bytes < 999_995 ? `${(bytes / 1e3).toFixed(2)} kB` : `${(bytes / 1e6).toFixed(2)} MB`;
  const name = (frame) => `${frame.kind} ${frame.label}`;

  /** A frame's amounts by rank: one that all ranks share is written once. */
  const of = (rank, amount) => (typeof amount === "number" ? amount : amount[rank]);
  const live = (rank, frame) => (typeof frame.live[0] === "number" ? frame.live : frame.live[rank]);
  const all = (amount) => (typeof amount === "number" ? exact(amount) : amount.map(exact).join(", "));

  /** What a rank does in a frame, in a few words. */
  function doing(rank, frame) {
    const sent = of(rank, frame.sent);
    const freed = of(rank, frame.freed);
    if (TRANSFERS.includes(frame.kind)) {
      return `sends ${exact(sent)} B`;
    }
    if (freed) return `frees ${exact(freed)} B`;
    return frame.kind === "step" ? "updates its part" : "computes";
  }

  /** A rank's bytes are N-1 chunks, round a ring or straight to the others; an all-reduce's twice that. */
  function messages(frame) {
    const count = (data.ranks - 1) * (frame.kind === "all-reduce" ? 2 : 1);
    return `${count} messages of ${exact(of(ASKED, frame.sent) / count)} B from each rank`;
  }

  /** A frame for those who do not see it. */
  function spoken(frame) {
    const moved = TRANSFERS.includes(frame.kind)
      ? `Each rank sends ${all(frame.sent)} bytes.`
      : frame.freed
        ? `Each rank frees ${all(frame.freed)} bytes.`
        : "Nothing is sent.";
    const states = HELD.map((state, index) => `${state} ${exact(live(ASKED, frame)[index])}`);
    return `${name(frame)}. ${frame.cause} ${moved} Rank ${ASKED} holds, in bytes: ${states.join(", ")}.`;
  }

  /** From the disk a browser opens a file instead of saving it, and lets no page read it. So there the
   * recording comes as a script, which leaves its text behind, and is saved from that. */
  function save(link) {
    const script = document.createElement("script");
    script.src = link.href.replace(/json$/, "js");
    script.onload = () => {
      const address = URL.createObjectURL(new Blob([zerolabRecordedStep], { type: "application/json" }));
      Object.assign(document.createElement("a"), { href: address, download: link.download }).click();
      URL.revokeObjectURL(address);
      script.remove();
    };
    document.head.append(script);
  }

  // ---- The element ----

  const button = (action, text, label) =>
    `<button type="button" data-action="${action}" aria-label="${label}">${text}</button>`;

  const TEMPLATE = document.createElement("template");
  TEMPLATE.innerHTML = `
    <style>
      :host { display: block; container-type: inline-size; line-height: 1.4;
        font-variant-numeric: tabular-nums; color: var(--pst-color-text-base, CanvasText);
        --line: var(--pst-color-text-muted, GrayText); --wire: #009e73; }
      :host([hidden]), [hidden] { display: none !important; }
      * { box-sizing: border-box; }
      fieldset { margin: 0; padding: 0; border: 0; }
      .strategies { display: flex; flex-wrap: wrap; gap: .3rem .4rem; margin-bottom: .8rem; }
      .strategies label { padding: .35rem .6rem; border: 1px solid var(--line); border-radius: .25rem; cursor: pointer; }
      .strategies label:has(:checked) { font-weight: 700; border-width: 2px; padding: calc(.35rem - 1px) calc(.6rem - 1px);
        border-color: var(--pst-color-primary, Highlight); }
      .strategies label:has(:focus-visible) { outline: 3px solid var(--pst-color-primary, Highlight); outline-offset: 2px; }
      .strategies input { margin: 0 .35rem 0 0; }
      button { min-width: 2.6rem; min-height: 2.6rem; padding: .2rem .7rem; font: inherit; color: inherit; cursor: pointer;
        background: var(--pst-color-surface, ButtonFace); border: 1px solid var(--line); border-radius: .25rem; }
      button[aria-disabled=true] { border-style: dashed; font-weight: 400; cursor: default; }
      button.main { min-width: 6.5rem; font-weight: 700; border: 2px solid var(--pst-color-primary, Highlight); }
      :focus-visible { outline: 3px solid var(--pst-color-primary, Highlight); outline-offset: 2px; }
      .transport { display: flex; flex-wrap: wrap; align-items: center; gap: .4rem; margin-bottom: .5rem; }
      .place { margin-left: auto; font-size: .9rem; }
      .time { position: relative; }
      .time input { display: block; width: 100%; height: 1.6rem; margin: 0; accent-color: var(--pst-color-primary, Highlight); cursor: pointer; }
      .cursor { position: absolute; z-index: 1; width: 0; pointer-events: none; outline: 1.5px solid var(--pst-color-text-base, CanvasText); }
      .told { min-height: 6rem; margin: .5rem 0; padding: .6rem .9rem; border-left: .35rem solid var(--line);
        background: var(--pst-color-surface, transparent); }
      .told.transfer { border-left-color: var(--wire); }
      .told p { margin: 0 0 .3rem; }
      .told .what { font-weight: 700; }
      .choices { display: flex; flex-wrap: wrap; gap: .4rem; margin: .5rem 0 .2rem; }
      .question { font-weight: 700; }
      .given { font-size: .9rem; }
      .verdict::before { content: "✗ "; font-weight: 700; }
      .verdict.right::before { content: "✓ "; }
      .ranks { display: grid; grid-template-columns: repeat(${data.ranks}, minmax(0, 1fr)); gap: 0 .7rem; }
      .rank { position: relative; padding: .4rem; border: 1px solid var(--line); border-radius: .25rem; font-size: .8rem; }
      .rank .name { display: flex; justify-content: space-between; gap: .4rem; font-size: .9rem; }
      .rank .name b { font-weight: 700; }
      .doing { margin: .2rem 0 .3rem; }
      .state { margin-bottom: .3rem; }
      .state > span { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 .2rem; }
      .state.changed .size { font-weight: 700; text-decoration: underline; text-underline-offset: .15em; }
      .track { height: .8rem; border: 1px solid var(--line); border-width: 0 0 1px 1px; }
      .track i { display: block; height: 100%; print-color-adjust: exact; -webkit-print-color-adjust: exact; forced-color-adjust: none; }
      .parameters { background: #0072b2; }
      .gradients { background: #e69f00; }
      .optimizer { background: #56b4e9; }
      .gathered { background: #cc79a7; }
      .activations { background: #999; }
      .sending .rank { border-color: var(--wire); box-shadow: inset 0 .25rem var(--wire); }
      /* The collective: a line under the ranks, and one up and down between it and each of them. */
      .plug { position: absolute; top: 100%; left: 50%; width: 2px; height: 1.2rem; background: var(--wire); visibility: hidden; }
      .plug::before, .plug::after { content: ""; position: absolute; left: -.25rem; border: solid transparent; border-width: 0 .31rem; }
      .plug::before { top: 0; border-bottom: .45rem solid var(--wire); }
      .plug::after { bottom: 0; border-top: .45rem solid var(--wire); }
      .sending .plug, .sending + .wire { visibility: visible; }
      .wire { visibility: hidden; margin: 1.2rem 0 .4rem; padding-top: .2rem; border-top: 3px solid var(--wire); text-align: center; font-size: .85rem; }
      .spoken { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
      .help { display: block; margin: .5rem 0; font-size: .85rem; }
      kbd { padding: 0 .3rem; border: 1px solid var(--line); border-radius: .2rem; font: inherit; background: none; color: inherit; }
      @container (max-width: 36rem) {
        .ranks { grid-template-columns: 1fr; gap: .6rem; }
        .rank { padding-bottom: .3rem; }
        .state { display: grid; grid-template-columns: 10.5rem 1fr; gap: .4rem; align-items: center; margin-bottom: .15rem; }
        .ranks { padding-left: 1.2rem; border-left: 3px solid transparent; }
        .ranks.sending { border-left-color: var(--wire); }
        .plug { top: 50%; left: auto; right: 100%; width: 1.2rem; height: 2px; }
        .plug::before, .plug::after { top: -.25rem; border-width: .31rem 0; }
        .plug::before { left: auto; right: 0; border-bottom: .31rem solid transparent; border-left: .45rem solid var(--wire); }
        .plug::after { left: 0; bottom: auto; border-top: .31rem solid transparent; border-right: .45rem solid var(--wire); }
        .wire { margin-top: .5rem; border: 0; text-align: left; }
        .place { width: 100%; margin: 0; }
        .place::after { content: ": " attr(data-name); font-weight: 700; }
        /* The page's own bar is above it. */
        .transport { position: sticky; z-index: 2; top: 3rem; padding: .4rem 0; background: var(--pst-color-background, Canvas); }
      }
      @media (prefers-reduced-motion: no-preference) { .track i { transition: width .2s; } }
      @media print { .transport, .strategies, .help, .time input { display: none; } .rank { break-inside: avoid; } }
    </style>
    <form aria-label="Step-through">
      <fieldset class="strategies"><legend class="spoken">Strategy</legend></fieldset>
      <div class="transport" role="group" aria-label="Frames">
        ${button("earlier", "«", "Previous phase")}${button("back", "◀", "Back")}
        <button type="button" class="main" data-action="forward">Forward ▶</button>
        ${button("later", "»", "Next phase")}
        <span class="place"></span>
      </div>
      <div class="time">
        <div class="cursor"></div>
        <slot name="figure"></slot>
        <input type="range" min="1" step="1" aria-label="Frame">
      </div>
      <div class="told">
        <p class="what"></p><p class="why"></p>
        <fieldset class="prediction"><p class="question" id="question"></p><p class="given"></p><div class="choices"></div></fieldset>
        <p class="verdict"></p>
      </div>
      <div class="ranks">${RANKS.map((rank) => `
        <section class="rank" aria-label="Rank ${rank}">
          <div class="name"><b>rank ${rank}</b><span class="total"></span></div>
          <p class="doing"></p>
          ${HELD.map((state) => `<div class="state"><span><span>${state}</span><span class="size"></span></span>
            <div class="track"><i class="${state}"></i></div></div>`).join("")}
          <span class="plug"></span>
        </section>`).join("")}
      </div>
      <div class="wire" aria-hidden="true">&nbsp;</div>
      <label class="help"><input type="checkbox" class="ask" checked> Ask me to predict before bytes are shown</label>
    </form>
    <p class="spoken" role="status"></p>
    <p class="help"><kbd>←</kbd> <kbd>→</kbd> a frame, <kbd>Page Up</kbd> <kbd>Page Down</kbd> a phase,
      <kbd>Home</kbd> <kbd>End</kbd> the ends. All bars have the same scale: ${short(data.largest)} is a full one.</p>
    <slot name="table"></slot>
    <slot name="source"></slot>`;

  class ZeroStep extends HTMLElement {
    connectedCallback() {
      if (!this.shadowRoot) this.make();
      this.hashChanged = () => this.read();
      addEventListener("hashchange", this.hashChanged);
      this.read();
    }

    disconnectedCallback() {
      removeEventListener("hashchange", this.hashChanged);
    }

    make() {
      this.attachShadow({ mode: "open" }).append(TEMPLATE.content.cloneNode(true));
      this.answered = new Map(); // "zero3-7" -> the bytes that the reader chose; null: just shown
      const only = this.getAttribute("strategy");
      this.strategies = only ? [only] : Object.keys(data.strategies);
      const chooser = this.$(".strategies");
      chooser.hidden = Boolean(only);
      for (const strategy of this.strategies) {
        const label = document.createElement("label");
        label.innerHTML = `<input type="radio" name="strategy" value="${strategy}">${data.strategies[strategy].title}`;
        chooser.append(label);
      }
      this.querySelector("a.download").addEventListener("click", (event) => {
        if (location.protocol !== "file:") return;
        event.preventDefault();
        save(event.currentTarget);
      });
      this.form = this.$("form");
      this.form.addEventListener("submit", (event) => event.preventDefault());
      this.form.addEventListener("keydown", (event) => this.pressed(event));
      this.form.addEventListener("click", (event) => {
        const { action, bytes } = event.target.closest("button")?.dataset ?? {};
        if (action) this.go(action);
        else if (bytes) this.answer(Number(bytes));
      });
      this.form.addEventListener("input", ({ target }) => {
        if (target.type === "range") this.show(this.strategy, Number(target.value) - 1);
        else if (target.type === "radio") this.show(target.value, 0);
        else this.show(this.strategy, this.at);
      });
    }

    $(selector) {
      return this.shadowRoot.querySelector(selector);
    }

    get frames() {
      return data.strategies[this.strategy].frames;
    }

    get key() {
      return `${this.strategy}-${this.at}`;
    }

    /** The question about this frame, while it has not been answered. */
    get question() {
      const asked = data.strategies[this.strategy].predictions[this.at];
      return asked && this.$(".ask").checked && !this.answered.has(this.key) ? asked : null;
    }

    get hashName() {
      return this.id ? `${this.id}.step` : "step";
    }

    read() {
      const said = new URLSearchParams(location.hash.slice(1)).get(this.hashName) ?? "";
      const [strategy, frame] = said.split("-");
      const known = this.strategies.includes(strategy);
      if (!known && this.strategy) return; // an anchor, not a frame
      this.show(known ? strategy : this.strategies[0], known ? (Number.parseInt(frame, 10) || 1) - 1 : 0);
    }

    /** Not at every frame of a key held down: browsers limit how often a page may change its address. */
    write() {
      clearTimeout(this.writing);
      this.writing = setTimeout(() => {
        const hash = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");
        hash.set(this.hashName, `${this.strategy}-${this.at + 1}`);
        history.replaceState(history.state, "", `#${hash}`);
      }, 250);
    }

    pressed(event) {
      if (event.ctrlKey || event.altKey || event.metaKey || event.target.type === "radio") return;
      const action = {
        ArrowLeft: "back", ArrowRight: "forward", PageUp: "earlier", PageDown: "later", Home: "first", End: "last",
      }[event.key];
      if (!action) return;
      event.preventDefault();
      this.go(action);
    }

    go(action) {
      const last = this.frames.length - 1;
      const starts = this.frames.flatMap((frame, at) => (at && frame.phase === this.frames[at - 1].phase ? [] : [at]));
      if (action === "forward" && this.question) return this.answer(null);
      const to = {
        back: this.at - 1,
        forward: this.at + 1,
        first: 0,
        last,
        earlier: starts.findLast((at) => at < this.at) ?? 0,
        later: starts.find((at) => at > this.at) ?? last,
      }[action];
      this.show(this.strategy, to);
      this.write();
    }

    answer(bytes) {
      this.answered.set(this.key, bytes);
      this.show(this.strategy, this.at);
      this.$(".main").focus(); // the choice that had it is gone
    }

    show(strategy, at) {
      const moved = this.strategy !== undefined && (strategy !== this.strategy || at !== this.at);
      this.strategy = strategy;
      this.at = Math.max(0, Math.min(at, this.frames.length - 1));
      const frame = this.frames[this.at];
      const { question } = this;
      for (const part of this.children) {
        if (part.dataset.strategy) part.hidden = part.dataset.strategy !== strategy;
      }
      for (const radio of this.shadowRoot.querySelectorAll("[type=radio]")) radio.checked = radio.value === strategy;
      const range = this.$("[type=range]");
      range.max = this.frames.length;
      range.value = this.at + 1;
      range.setAttribute("aria-valuetext", `${this.at + 1} of ${this.frames.length}, ${frame.phase}, ${name(frame)}`);
      this.$(".place").textContent = `Frame ${this.at + 1} of ${this.frames.length}, ${frame.phase}`;
      this.$(".place").dataset.name = name(frame);
      // Not `disabled`: a button that has the focus would lose it at the end, and with it the keys.
      const ends = { back: 0, earlier: 0, forward: this.frames.length - 1, later: this.frames.length - 1 };
      for (const [action, end] of Object.entries(ends)) {
        this.$(`[data-action=${action}]`).setAttribute("aria-disabled", String(this.at === end && !question));
      }
      this.$(".main").textContent = question ? "Show ▶" : "Forward ▶";
      this.tell(frame, question);
      this.draw(frame, question);
      this.point();
      if (moved) this.write();
    }

    tell(frame, question) {
      this.$(".told").classList.toggle("transfer", TRANSFERS.includes(frame.kind));
      this.$(".what").textContent = name(frame);
      this.$(".why").textContent = frame.cause;
      this.$(".prediction").hidden = !question;
      this.$(".question").textContent = question?.question ?? "";
      this.$(".given").textContent = question?.given ?? "";
      this.$(".choices").innerHTML = (question?.choices ?? [])
        .map(([bytes]) => `<button type="button" data-bytes="${bytes}">${exact(bytes)} bytes</button>`).join("");
      const verdict = this.verdict();
      this.$(".verdict").hidden = !verdict;
      this.$(".verdict").textContent = verdict;
      this.$("[role=status]").textContent =
        `Frame ${this.at + 1} of ${this.frames.length}, ${frame.phase}. ` +
        (question ? `${name(frame)}. ${frame.cause} ${question.question} ${question.given}` : `${verdict} ${spoken(frame)}`);
    }

    /** What the reader chose, what is right, and the thought behind either. */
    verdict() {
      const chosen = this.answered.get(this.key);
      if (chosen === undefined || chosen === null) return "";
      const { choices, answer } = data.strategies[this.strategy].predictions[this.at];
      const meaning = (bytes) => choices.find((choice) => choice[0] === bytes)[1];
      const right = chosen === answer;
      this.$(".verdict").classList.toggle("right", right);
      return right
        ? `${exact(answer)} bytes it is. ${meaning(answer)}`
        : `${exact(chosen)} bytes? ${meaning(chosen)} It is ${exact(answer)} bytes. ${meaning(answer)}`;
    }

    /** The ranks as this frame leaves them; while a question is open, as the one before did. */
    draw(frame, question) {
      const before = this.frames[this.at - 1];
      const seen = question && before ? before : frame;
      const sending = TRANSFERS.includes(frame.kind) && !question;
      this.$(".ranks").classList.toggle("sending", sending);
      this.$(".wire").textContent = sending ? `${name(frame)}: ${messages(frame)}` : "\u00a0";
      this.shadowRoot.querySelectorAll(".rank").forEach((card, rank) => {
        const sizes = live(rank, seen);
        const sum = sizes.reduce((total, size) => total + size);
        card.querySelector(".total").textContent = short(sum);
        card.querySelector(".doing").textContent = question ? "?" : doing(rank, frame);
        card.querySelectorAll(".state").forEach((row, index) => {
          row.querySelector(".size").textContent = short(sizes[index]);
          row.querySelector("i").style.width = `${(100 * sizes[index]) / data.largest}%`;
          const changed = !question && before && live(rank, before)[index] !== sizes[index];
          row.classList.toggle("changed", Boolean(changed));
        });
      });
    }

    /** The line in the figure, over this frame. */
    point() {
      const svg = [...this.querySelectorAll("svg")].find((one) => !one.closest("[hidden]"));
      const cursor = this.$(".cursor");
      if (!svg) return;
      const place = svg.getBoundingClientRect();
      const frame = this.$(".time").getBoundingClientRect();
      cursor.style.left = `${(100 * (this.at + 0.5)) / this.frames.length}%`;
      cursor.style.top = `${place.top - frame.top}px`;
      cursor.style.height = `${place.height}px`;
    }
  }

  customElements.define("zero-step", ZeroStep);
})();
