// The view of loads: the bytes that a load under another layout reads, by the boxes of the chunks.

const mostRanks = 4096;

/** Reads "TP=2 PP=2 DP=4" or "axis 0 in 8". Throws a sentence. */
function layoutOf(words) {
  const even = /^\s*axis\s*(\d{1,2})\s*(?:in|by|[:/x×,])\s*(\d{1,6})\s*$/i.exec(words);
  const layout = {tp: 1, pp: 1, ep: 1, dp: 1, axis: null};
  if (even) {
    layout.axis = Number(even[1]);
    layout.ranks = Number(even[2]);
  } else {
    const rest = words.replace(/\b(tp|pp|ep|dp)\s*[=:]?\s*(\d{1,6})\b[\s,;]*/gi, (_, name, size) => {
      layout[name.toLowerCase()] = Number(size);
      return '';
    }).trim();
    if (rest || !words.trim()) throw `“${middle(rest || words, 40)}” is no layout. Write sizes such as TP=2 PP=2 EP=1 DP=4, or axis 0 in 8.`;
    layout.ranks = layout.tp * layout.pp * layout.dp;
    if (layout.dp % layout.ep) throw `EP ${layout.ep} does not divide DP ${layout.dp}: the ranks of expert parallelism are among those of data parallelism.`;
  }
  if (!(layout.ranks >= 1)) throw 'Every size must be at least 1.';
  if (layout.ranks > mostRanks) throw `${count(layout.ranks)} ranks are too many for this page, which computes up to ${count(mostRanks)}.`;
  return layout;
}

const share = (from, to, part, parts) =>
  [from + Math.floor((to - from) * part / parts), from + Math.floor((to - from) * (part + 1) / parts)];

/** The box of a tensor that a rank needs, in the tensor's own shape; null: nothing. */
function wantedBox(t, layout, rank, layers) {
  const shape = tensors.shapeOf(t);
  const from = shape.map(() => 0);
  const to = [...shape];
  const cut = (axis, part, parts) => { [from[axis], to[axis]] = share(from[axis], to[axis], part, parts); };
  if (layout.axis !== null) {
    if (layout.axis >= shape.length) return rank === 0 ? {from, to} : null;
    cut(layout.axis, rank, layout.ranks);
    return {from, to};
  }
  const tp = rank % layout.tp;
  const dp = Math.floor(rank / layout.tp) % layout.dp;
  const pp = Math.floor(rank / layout.tp / layout.dp);
  if (tensors.layered[t]) cut(0, pp, layout.pp);
  else if (tensors.layer[t]) {
    if (Math.floor((tensors.layer[t] - 1) * layout.pp / layers) !== pp) return null;
  } else if (pp !== (isEmbedding(t) ? 0 : layout.pp - 1)) return null;
  if (tensors.split[t]) cut(tensors.split[t] - 1, tp, layout.tp);
  if (tensors.experts[t]) cut(tensors.experts[t] - 1, dp % layout.ep, layout.ep);
  if (tensors.state[t]) {
    const [part, parts] = tensors.experts[t] ? [Math.floor(dp / layout.ep), layout.dp / layout.ep] : [dp, layout.dp];
    const axis = shape.findIndex((_, i) => to[i] - from[i] > 1);
    if (axis >= 0) cut(axis, part, parts);
    else if (part) return null;
  }
  return {from, to};
}

/** The same box where flattened fragments are stored: whole fragments, or a range of a single one. */
function storedBox(t, box) {
  if (!tensors.shape[t]) return box;
  const stored = tensors.cutOf(t).shape;
  const shape = tensors.shapeOf(t);
  const from = shape.map((extent, axis) => Math.floor(box.from[axis] * stored[axis] / extent));
  const to = shape.map((extent, axis) => Math.ceil(box.to[axis] * stored[axis] / extent));
  const elements = stored[stored.length - 1];
  const fragments = from.reduce((all, start, axis) => all * (to[axis] - start), 1);
  if (fragments > 1) return {from: [...from, 0], to: [...to, elements]};
  const size = shape.map((extent, axis) => extent / stored[axis]);
  const begin = size.reduce((all, extent, axis) => all * extent + box.from[axis] - from[axis] * extent, 0);
  const last = size.reduce((all, extent, axis) => all * extent + box.to[axis] - 1 - from[axis] * extent, 0);
  return {from: [...from, begin], to: [...to, Math.min(last + 1, elements)]};
}

/** Elements in the chunks of a cut that share an element with a box, and the number of those. */
function touched(cut, box) {
  let elements = 1;
  let chunks = 1;
  if (cut.pieces) {
    cut.pieces.forEach((sizes, axis) => {
      const hit = sizes.filter((size, i) => size && cut.starts[axis][i] < box.to[axis] && cut.starts[axis][i] + size > box.from[axis]);
      elements *= hit.reduce((sum, size) => sum + size, 0);
      chunks *= hit.length;
    });
    return {elements, chunks};
  }
  elements = chunks = 0;
  for (let chunk = 0; chunk < cut.count; ++chunk) {
    const stored = boxOf(cut, chunk);
    if (stored.from.some((start, axis) => start >= box.to[axis] || stored.to[axis] <= box.from[axis])) continue;
    elements += elementsOf(stored);
    ++chunks;
  }
  return {elements, chunks};
}

const isEmbedding = (t) => /embed/i.test(tensors.names[t]);

/** What each rank reads of a tensor: [wanted, read, chunks] in turn. */
function loadOfTensor(t, layout, layers) {
  const cut = tensors.cutOf(t);
  const known = new Map();
  const parts = [];
  for (let rank = 0; rank < layout.ranks; ++rank) {
    const box = wantedBox(t, layout, rank, layers);
    if (!box || !elementsOf(box)) {
      parts.push(0, 0, 0);
      continue;
    }
    const stored = storedBox(t, box);
    const name = `${stored.from}|${stored.to}`;
    if (!known.has(name)) known.set(name, touched(cut, stored));
    const {elements, chunks} = known.get(name);
    parts.push(elementsOf(box) * tensors.item[t], elements * tensors.item[t], chunks);
  }
  return parts;
}

/** Bytes that each rank wants, bytes of the chunks that it touches, and their number. */
function loadOf(layout, optimizer) {
  const layers = tensors.layer.reduce((most, layer) => Math.max(most, layer), 1);
  const optimizerGroup = data.groups.indexOf('optimizer');
  const known = new Map();  // tensors of one kind that are cut and placed alike are read alike
  const ranks = Array.from({length: layout.ranks}, () => ({wanted: 0, read: 0, chunks: 0}));
  for (let t = 0; t < tensors.count; ++t) {
    if (!hasBoxes(tensors.cutOf(t)) || (!optimizer && tensors.group[t] === optimizerGroup)) continue;
    const name = `${tensors.kind[t]} ${tensors.cut[t]} ${layout.axis !== null ? '' : tensors.layer[t] || isEmbedding(t)}`;
    if (!known.has(name)) known.set(name, loadOfTensor(t, layout, layers));
    const parts = known.get(name);
    ranks.forEach((rank, i) => {
      rank.wanted += parts[3 * i];
      rank.read += parts[3 * i + 1];
      rank.chunks += parts[3 * i + 2];
    });
  }
  return ranks;
}

function loadView(view) {
  if (!tensors.count) return view.append(notice('No tensors', 'There is nothing to load, or nothing could be read.'));
  const saved = (data.facts.find(([name]) => name === 'saved with') ?? ['', ''])[1];
  const megatron = tensors.split.some(Boolean);
  const input = make('input', {type: 'text', spellcheck: false, value: megatron ? `TP=2 PP=1 DP=2` : 'axis 0 in 4'});
  const optimizer = make('input', {type: 'checkbox', checked: true});
  const result = make('div', {'aria-live': 'polite'});
  const draw = (layout) => {
    const ranks = loadOf(layout, optimizer.checked);
    const sum = (name) => ranks.reduce((all, rank) => all + rank[name], 0);
    const ratio = (rank) => rank.wanted ? rank.read / rank.wanted : 1;
    const ratios = ranks.map(ratio);
    const chart = columnChart({label: 'Bytes that each rank reads.', values: ranks.map((rank) => rank.read), inner: ranks.map((rank) => rank.wanted),
      hint: 'Dashed: the average. Point at a rank, or press the arrow keys.',
      tell: (i) => `rank ${i}: wants ${bytesText(ranks[i].wanted)}, in ${counted(ranks[i].chunks, 'chunk')} of ${bytesText(ranks[i].read)} (${ratios[i].toFixed(2)} ×)`});
    result.replaceChildren(
      make('p', {}, `${counted(ranks.length, 'rank')} want ${bytesText(sum('wanted'))} in all. The chunks that hold it have ${bytesText(sum('read'))}: `
        + `${(sum('read') / (sum('wanted') || 1)).toFixed(2)} × as much, ${smallest(ratios).toFixed(2)} to ${largest(ratios).toFixed(2)} × per rank.`),
      chart, legend([['h4', 'wanted: dckpt reads these ranges, and at most 5 % more'], ['h2', 'whole chunks: what readers of whole chunks read, such as PyTorch DCP']]),
      make('h3', {}, 'By rank'),
      table([{title: 'Rank', number: true}, {title: 'Wanted', number: true}, {title: 'Whole chunks', number: true}, {title: 'Amplification', number: true}, {title: 'Chunks', number: true}],
        ranks.slice(0, 256).map((rank, i) => [String(i), bytesText(rank.wanted), bytesText(rank.read), `${ratio(rank).toFixed(2)} ×`, count(rank.chunks)]), true));
    if (ranks.length > 256) result.append(make('p', {className: 'quiet'}, `The first 256 of ${count(ranks.length)} ranks.`));
    chart.redraw();
  };
  const compute = () => {
    try {
      draw(layoutOf(input.value));
    } catch (why) {
      if (typeof why !== 'string') throw why;
      result.replaceChildren(notice('Not computed', why));
    }
  };
  input.addEventListener('keydown', (event) => { if (event.key === 'Enter') compute(); });
  optimizer.addEventListener('change', compute);
  view.append(make('p', {}, `Type how a job would load this checkpoint. ${saved ? `It was saved with ${saved}. ` : ''}`
      + (megatron ? 'TP, PP, EP and DP divide tensors as Megatron does: ranks of one model replica read the same weights, and the distributed optimizer is cut evenly among DP. ' : '')
      + '“axis 0 in 8” cuts every tensor evenly along an axis.'),
    make('div', {className: 'controls'}, make('label', {}, 'Layout', input), make('label', {}, optimizer, 'with optimizer state'), make('button', {onclick: compute}, 'Compute')),
    result);
  compute();
}
