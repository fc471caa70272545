// zerolab.accounting once more, for pages without a kernel: bytes, traffic, step times, verdicts.
//
// A function has the name of the Python function that explains it, and its results to the byte, which
// tests/site/test_calculator.py asserts. Bytes are BigInt, as 10^15 parameters of 18 bytes pass
// 2^53. So are all sizes of a shape and a batch; seconds are plain numbers. Names of fields are
// Python's. Tables of models, GPUs and links are in calculator-data.js, written with the book.
"use strict";

globalThis.zerolabAccounting = (() => {
  const data = globalThis.zerolabCalculatorData;
  const STAGES = Object.keys(data.strategies);
  const STATES = ["parameters", "gradients", "optimizer"];
  const INDEX = 8n;
  const FP32 = 4n;
  const CHUNK = 1024n;
  const MIB = 2n ** 20n;
  const MOST_PARAMETERS = BigInt(data.mostParameters);
  const MOST_DOUBLINGS = 10;

  const ceilDiv = (a, b) => (a + b - 1n) / b;
  const sum = (values) => Object.values(values).reduce((total, value) => total + value, 0n);
  const most = (a, b) => (a > b ? a : b);
  const mapped = (row, write) => Object.fromEntries(Object.entries(row).map(([name, value]) => [name, write(value, name)]));
  const bigFields = (row) => mapped(row, (value) => BigInt(value));

  const PRECISIONS = mapped(data.precisions, bigFields);

  /** A catalogue's shape: its sizes, and those of its units whole and on every tensor-parallel rank. */
  const shapeOf = (model) =>
    bigFields(Object.fromEntries(data.shapeFields.map((field, index) => [field, data.models[model][index]])));

  const parametersOf = (model) => {
    const shape = shapeOf(model);
    return shape.embedding + shape.layers * shape.block + shape.output;
  };

  // ---- memory, traffic: model states of a number of parameters ----

  function states(whole, shard, strategy, precision) {
    const { shards } = data.strategies[strategy];
    return mapped(shards, (sharded, state) => PRECISIONS[precision][state] * (sharded ? shard : whole));
  }

  function modelStates(parameters, strategy, ranks, precision) {
    const found = states(parameters, ceilDiv(parameters, BigInt(ranks)), strategy, precision);
    return { ...found, total: sum(found) };
  }

  /** Of units: {size, times} with `times` units of one size. */
  function stepTraffic(units, strategy, ranks, precision, microBatches = 1) {
    const { shards, passes } = data.strategies[strategy];
    const gradients = BigInt(passes.gradients * (shards.gradients ? microBatches : 1));
    const parameters = BigInt(passes.parameters * (shards.parameters ? microBatches : 1));
    const others = BigInt(ranks - 1);
    let sent = 0n;
    let count = 0n;
    for (const { size, times } of units) {
      sent += times * ceilDiv(size, BigInt(ranks)) * others;
      count += times;
    }
    const policy = PRECISIONS[precision];
    return {
      bytes: sent * (gradients * policy.gradients + parameters * policy.parameters),
      messages: count * others * (gradients + parameters),
    };
  }

  const flatTraffic = (parameters, strategy, ranks, precision) =>
    stepTraffic([{ size: parameters, times: 1n }], strategy, ranks, precision);

  // ---- activations: what autograd keeps ----

  const tokensOf = (batch) => batch.size * batch.sequence;
  const inside = (batch, width) => ceilDiv(batch.element * tokensOf(batch) * width, batch.tensor_parallel);
  const outside = (batch, size) => (batch.sequence_parallel ? ceilDiv(size, batch.tensor_parallel) : size);

  function normKept(shape, batch, keeping, width, rows = 1n) {
    const values = tokensOf(batch) * width;
    const statistics = tokensOf(batch) * rows * FP32;
    if (!shape.rms) return batch.element * values + 2n * statistics;
    return batch.element * values + statistics + (keeping.norm === "fused" ? 0n : FP32 * values);
  }

  function block(shape, batch, keeping) {
    const input = outside(batch, batch.element * tokensOf(batch) * shape.hidden);
    if (keeping.recompute === "full") return input;
    const norm = outside(batch, normKept(shape, batch, keeping, shape.hidden));
    const halves = shape.block_norms > 1n ? 2n : 1n; // a parallel block has one norm for both halves
    const outer = shape.block_norms > 2n ? 2n * norm : 0n;
    return halves * (norm + input) + outer + attention(shape, batch, keeping) + feedForward(shape, batch, keeping);
  }

  function attention(shape, batch, keeping) {
    const selective = keeping.recompute === "selective";
    const query = shape.heads * shape.head_size;
    const kv = shape.kv_heads * shape.head_size;
    let kept = 2n * inside(batch, query); // the queries and the output
    kept += 2n * inside(batch, keeping.repeated_kv && !selective ? query : kv);
    if (shape.query_key_rows) {
      kept += ceilDiv(normKept(shape, batch, keeping, query + kv, shape.query_key_rows), batch.tensor_parallel);
    }
    if (!selective) kept += ceilDiv(tokensOf(batch) * shape.heads * scoreRow(batch, keeping), batch.tensor_parallel);
    return kept + masks(shape, batch, keeping);
  }

  const masks = (shape, batch, keeping) => (keeping.dropout ? outside(batch, tokensOf(batch) * shape.hidden) : 0n);

  function scoreRow({ sequence, element }, keeping) {
    if (keeping.attention === "flash") return FP32;
    const again = keeping.attention === "eager" && element < FP32 ? FP32 : 0n;
    return sequence * (element + again + (keeping.dropout ? 1n + element : 0n));
  }

  function feedForward(shape, batch, keeping) {
    const eager = keeping.activation === "eager";
    let tensors = 1n; // the output's input
    if (shape.gated) tensors += eager ? 3n : 2n;
    else if (!shape.relu) tensors += eager ? 4n : 1n;
    return tensors * inside(batch, shape.feed_forward) * shape.active_experts + masks(shape, batch, keeping);
  }

  function embedding(shape, batch, keeping) {
    let kept = INDEX * tokensOf(batch) + masks(shape, batch, keeping);
    if (shape.positions) kept += INDEX * batch.sequence;
    if (shape.rotary) kept += 2n * batch.element * batch.sequence * shape.head_size;
    if (shape.embedding_norm) kept += outside(batch, normKept(shape, batch, keeping, shape.hidden));
    return kept;
  }

  function output(shape, batch, keeping) {
    const tokens = tokensOf(batch);
    let kept = INDEX * tokens + outside(batch, batch.element * tokens * shape.hidden);
    if (shape.final_norm) kept += outside(batch, normKept(shape, batch, keeping, shape.hidden));
    if (keeping.loss === "eager") kept += ceilDiv(FP32 * tokens * shape.vocabulary, batch.tensor_parallel) + FP32;
    if (keeping.loss === "fused") kept += inside(batch, shape.vocabulary) + FP32 * tokens;
    return kept;
  }

  const activations = (shape, batch, keeping) => ({
    embedding: embedding(shape, batch, keeping),
    blocks: shape.layers * block(shape, batch, keeping),
    output: output(shape, batch, keeping),
  });

  // ---- moments: what is alive when. One unit is gathered ahead, as in Python's default ----

  /** tensor_parallel.unit_sizes, and each padded to a multiple of the ranks. */
  function unitSizes(shape, tensorParallel, ranks = 1) {
    const sizes = {};
    for (const unit of ["embedding", "block", "output"]) {
      const replicated = shape[`replicated_${unit}`];
      const held = replicated + ceilDiv(shape[unit] - replicated, tensorParallel);
      sizes[unit] = ceilDiv(held, BigInt(ranks)) * BigInt(ranks);
    }
    return sizes;
  }

  const unitsOf = (shape, sizes) => [
    { size: sizes.embedding, times: 1n },
    { size: sizes.block, times: shape.layers },
    { size: sizes.output, times: 1n },
  ];

  function persistentStates({ shape, batch, strategy, ranks, precision }) {
    const sizes = unitSizes(shape, batch.tensor_parallel, ranks);
    const padded = sizes.embedding + shape.layers * sizes.block + sizes.output;
    const found = states(padded, padded / BigInt(ranks), strategy, precision);
    found.optimizer += 4n * (shape.layers + 2n); // AdamW's step counter, one a unit
    return found;
  }

  function moments(setup) {
    const { shape, batch, keeping, ranks } = setup;
    const policy = PRECISIONS[setup.precision];
    const { shards } = data.strategies[setup.strategy];
    const units = unitSizes(shape, batch.tensor_parallel, ranks);
    const all = units.embedding + shape.layers * units.block + units.output;
    const persistent = persistentStates(setup);
    const later = setup.micro_batches > 1;
    const moment = (name, parts) => ({ name, parts, total: sum(parts) });
    const withGradients = (elements) => ({
      ...persistent,
      gradients: policy.gradients * (shards.gradients ? elements / BigInt(ranks) : elements),
    });
    const gathered = (unit) => (shards.parameters ? policy.parameters * unit : 0n);

    const kept = sum(activations(shape, batch, keeping));
    const loss = (name, earlier, backward) =>
      moment(name, {
        ...withGradients(earlier ? all : 0n),
        prefetched: gathered(units.output),
        activations: kept,
        [backward ? "gradients of logits" : "logits"]: logits(setup, backward),
      });

    const oneBlock = block(shape, batch, keeping);
    const before = embedding(shape, batch, keeping);
    const recomputed =
      keeping.recompute === "none" ? 0n : block(shape, batch, { ...keeping, recompute: "none" }) - oneBlock;
    const streams = activationGradients(shape, batch);
    const backwardOf = (index) =>
      moment(`backward of block ${index + 1n} of ${shape.layers}`, {
        ...withGradients(later ? all : units.output + (shape.layers - index - 1n) * units.block),
        gathered: gathered(units.block),
        prefetched: index > 0n ? gathered(units.block) : 0n,
        "gradient buffers": policy.gradients * units.block,
        "communication buffers":
          shards.gradients ? policy.gradients * (index + 1n < shape.layers ? units.block : units.output) : 0n,
        activations: before + (index + 1n) * oneBlock,
        recomputed,
        "gradients of activations": streams,
      });
    const ends = [0n, 1n, shape.layers - 2n, shape.layers - 1n].filter((index) => index >= 0n && index < shape.layers);
    const worst = ends.map(backwardOf).reduce(larger);

    const found = [loss("end of forward", false, false)];
    if (later) found.push(loss("end of a later forward", true, false));
    found.push(loss("backward of the loss", later, true), worst);
    found.push(moment("optimizer step", { ...withGradients(all), "fp32 copies": updateCopies(setup, units) }));
    return found;
  }

  const larger = (worst, moment) => (moment.total > worst.total ? moment : worst);
  const peak = (setup) => moments(setup).reduce(larger);

  function logits({ shape, batch, keeping }, backward) {
    const forward = batch.element + (batch.element < FP32 ? FP32 : 0n);
    const each = backward ? 2n * FP32 : forward;
    const divided = (tokens, width) => ceilDiv(tokens * shape.vocabulary * width, batch.tensor_parallel);
    if (keeping.loss === "fused") return 0n;
    if (keeping.loss === "eager") return divided(tokensOf(batch), each);
    const chunk = tokensOf(batch) < CHUNK ? tokensOf(batch) : CHUNK;
    return divided(chunk, FP32 + (backward ? most(each, forward) : forward));
  }

  function activationGradients(shape, batch) {
    const inner = (shape.gated ? 2n : 1n) * shape.feed_forward * shape.active_experts;
    return outside(batch, batch.element * tokensOf(batch) * shape.hidden) + inside(batch, inner);
  }

  function updateCopies({ strategy, ranks, precision }, units) {
    const policy = PRECISIONS[precision];
    const largest = Object.values(units).reduce(most);
    const part = data.strategies[strategy].shards.optimizer ? largest / BigInt(ranks) : largest;
    return FP32 * part * (BigInt(policy.gradients < FP32) + BigInt(policy.parameters < FP32 && !policy.master));
  }

  // ---- beside ----

  function beside(tensors, devices) {
    const found = {
      "CUDA context": { low: 250n * MIB, high: 750n * MIB },
      fragmentation: { low: 0n, high: tensors / 10n },
    };
    if (devices > 1) found["communicator buffers"] = { low: 64n * MIB, high: 1024n * MIB };
    return found;
  }

  const devicesOf = (setup) => setup.ranks * Number(setup.batch.tensor_parallel);
  const low = (allowances) => Object.values(allowances).reduce((total, one) => total + one.low, 0n);
  const high = (allowances) => Object.values(allowances).reduce((total, one) => total + one.high, 0n);

  function explain(shown, tensors, devices) {
    const allowances = beside(tensors, devices);
    const remainder = shown - tensors;
    const least = low(allowances);
    const greatest = high(allowances);
    const explained = remainder < least ? least : remainder > greatest ? greatest : remainder;
    return { remainder, low: least, high: greatest, unexplained: remainder - explained };
  }

  // ---- traffic and step_time of a set-up ----

  function tensorParallelTraffic({ shape, batch, keeping }) {
    const others = batch.tensor_parallel - 1n;
    const reductions = shape.layers * (keeping.recompute === "full" ? 6n : 4n) + 2n;
    const messages = reductions * 2n * others;
    const chunk = ceilDiv(batch.element * tokensOf(batch) * shape.hidden, batch.tensor_parallel);
    return { bytes: messages * chunk + others * 2n * FP32 * tokensOf(batch), messages: messages + others };
  }

  function setupTraffic(setup) {
    const { shape, batch, strategy, ranks, precision, micro_batches: times } = setup;
    const units = unitsOf(shape, unitSizes(shape, batch.tensor_parallel));
    const spread = stepTraffic(units, strategy, ranks, precision, times);
    const tensor = tensorParallelTraffic(setup);
    return {
      bytes: spread.bytes + BigInt(times) * tensor.bytes,
      messages: spread.messages + BigInt(times) * tensor.messages,
    };
  }

  function linkSeconds(link, bytes, messages) {
    const [latency, bandwidth] = data.links[link];
    return Number(messages) * latency + Number(bytes) / bandwidth;
  }

  function computeSeconds({ shape, batch, keeping }, gpu) {
    const tokens = tokensOf(batch);
    const attended = 4n * tokens * batch.sequence * shape.heads * shape.head_size;
    const one = 2n * tokens * (shape.block - shape.idle) + attended;
    const head = 2n * tokens * shape.hidden * shape.vocabulary;
    const again = { none: 0n, selective: attended, full: one }[keeping.recompute];
    const rate = data.gpus[gpu][1] * 1e12 * data.efficiency * Number(batch.tensor_parallel);
    const seconds = (block, output) => perUnit(shape, 0, Number(block) / rate, Number(output) / rate);
    return { forward: seconds(one, head), backward: seconds(2n * one + again, 2n * head) };
  }

  const perUnit = (shape, embedding, block, output) => [embedding, ...Array(Number(shape.layers)).fill(block), output];

  function stepTime(setup, gpu, link, tensorLink) {
    const { forward, backward } = computeSeconds(setup, gpu);
    const { bytes, messages } = tensorParallelTraffic(setup);
    const tensor = linkSeconds(tensorLink, bytes, messages);
    const layers = Number(setup.shape.layers);
    for (let index = 1; index <= layers; index++) {
      forward[index] += tensor / 2 / layers;
      backward[index] += tensor / 2 / layers;
    }
    const busy = [...forward, ...backward].reduce((a, b) => a + b, 0);
    const inLine = tensor * setup.micro_batches;
    return { compute: setup.micro_batches * busy - inLine, tensor: inLine, total: walk(setup, link, forward, backward) };
  }

  /** Seconds of a step on two streams, one unit gathered ahead: until when each is busy. */
  function walk(setup, link, forward, backward) {
    const { shards } = data.strategies[setup.strategy];
    const policy = PRECISIONS[setup.precision];
    const sizes = unitSizes(setup.shape, setup.batch.tensor_parallel, setup.ranks);
    const others = setup.ranks - 1;
    const pass = (size, width) => linkSeconds(link, (Number(size * width) * others) / setup.ranks, others);
    const passes = (width, times) =>
      perUnit(setup.shape, ...Object.values(sizes).map((size) => times * pass(size, width)));
    const gather = passes(policy.parameters, 1);
    const reduce = passes(policy.gradients, data.strategies[setup.strategy].passes.gradients);
    let [computingUntil, sendingUntil] = [0, 0];
    const send = (seconds) => {
      sendingUntil = Math.max(sendingUntil, computingUntil) + seconds;
      return sendingUntil;
    };
    const through = (units, seconds, reduces) => {
      const arrived = [];
      units.forEach((unit, place) => {
        if (shards.parameters) {
          while (arrived.length < Math.min(place + 2, units.length)) arrived.push(send(gather[units[arrived.length]]));
          computingUntil = Math.max(computingUntil, arrived[place]);
        }
        computingUntil += seconds[unit];
        if (reduces) send(reduce[unit]);
      });
    };
    const ahead = [...forward.keys()];
    const back = [...ahead].reverse();
    for (let batch = 1; batch <= setup.micro_batches; batch++) {
      through(ahead, forward, false);
      through(back, backward, shards.gradients || batch === setup.micro_batches);
    }
    computingUntil = Math.max(computingUntil, sendingUntil);
    const publishes = shards.optimizer && !shards.parameters;
    return publishes ? send(gather.reduce((a, b) => a + b)) : computingUntil;
  }

  // ---- verdict, of model states; fit, of a peak ----

  function verdict(parameters, chosen, capacity) {
    const total = (choice) => modelStates(parameters, choice.strategy, choice.ranks, choice.precision).total;
    const fits = (choice) => total(choice) <= capacity;
    const found = { spare: capacity - total(chosen), keeping_precision: null, keeping_ranks: null };
    if (found.spare >= 0n) return found;
    const stages = STAGES.slice(STAGES.indexOf(chosen.strategy));

    for (const strategy of stages) {
      const wider = fewestRanks({ ...chosen, strategy }, fits);
      if (wider && (!found.keeping_precision || wider.ranks < found.keeping_precision.ranks)) {
        found.keeping_precision = wider;
      }
    }
    if (found.keeping_precision?.ranks === chosen.ranks) return found;

    const others = Object.keys(PRECISIONS).filter((name) => name !== chosen.precision);
    const width = (name) => STATES.reduce((total, state) => total + data.precisions[name][state], 0);
    others.sort((a, b) => width(b) - width(a) || data.precisions[a].parameters - data.precisions[b].parameters);
    const narrower = others.flatMap((precision) => stages.map((strategy) => ({ ...chosen, strategy, precision })));
    found.keeping_ranks = narrower.find(fits) ?? null;
    return found;
  }

  /** By bisection: more ranks never need more bytes. */
  function fewestRanks(choice, fits) {
    let least = choice.ranks;
    let enough = data.mostRanks;
    if (!fits({ ...choice, ranks: enough })) return null;
    while (least < enough) {
      const middle = Math.floor((least + enough) / 2);
      if (fits({ ...choice, ranks: middle })) enough = middle;
      else least = middle + 1;
    }
    return { ...choice, ranks: least };
  }

  function fit(setup, memory) {
    const held = (tried) => {
      const tightest = peak(tried);
      const needed = tightest.total + high(beside(tightest.total, devicesOf(tried)));
      return { peak: tightest, needed, spare: memory - needed, change: null };
    };
    const found = held(setup);
    if (found.spare >= 0n) return found;
    for (const tried of changes(setup)) {
      // What cannot fit by its states alone needs no peak.
      if (sum(persistentStates(tried)) <= memory && held(tried).spare >= 0n) return { ...found, change: tried };
    }
    return found;
  }

  function* changes(setup) {
    const { keeping, batch, ranks } = setup;
    const stages = STAGES.slice(STAGES.indexOf(setup.strategy));
    for (let doublings = 0; doublings <= MOST_DOUBLINGS && ranks * 2 ** doublings <= data.mostRanks; doublings++) {
      for (const recompute of new Set([keeping.recompute, "full"])) {
        for (const size of new Set([batch.size, 1n])) {
          for (const strategy of stages) {
            yield {
              ...setup,
              strategy,
              ranks: ranks * 2 ** doublings,
              keeping: { ...keeping, recompute },
              batch: { ...batch, size },
              micro_batches: setup.micro_batches * Number(batch.size / size),
            };
          }
        }
      }
    }
  }

  // ---- quantities ----

  /** "7e9", "7B", "350M", "7_000_000" as BigInt, null for anything else. */
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

  return {
    STAGES, STATES, mapped, sum, shapeOf, parametersOf, parseCount, modelStates, flatTraffic, activations, unitSizes,
    persistentStates, moments, peak, beside, devicesOf, explain, setupTraffic, linkSeconds, stepTime, verdict, fit,
  };
})();
