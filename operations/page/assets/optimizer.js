// Optimizer ranges: which part of a parameter's state is in which file, in the order of its elements.

/** The chunk that holds an element, counted in C order of the stored shape; -1: none. */
function chunkOf(cut, element) {
  const place = new Array(cut.shape.length);
  for (let axis = cut.shape.length - 1, rest = element; axis >= 0; --axis) {
    place[axis] = rest % cut.shape[axis];
    rest = (rest - place[axis]) / cut.shape[axis];
  }
  if (cut.pieces) {
    let chunk = 0;
    for (let axis = 0; axis < place.length; ++axis) {
      let piece = cut.starts[axis].length - 1;
      while (piece > 0 && cut.starts[axis][piece] > place[axis]) --piece;
      chunk = chunk * cut.pieces[axis].length + piece;
    }
    return chunk;
  }
  const reach = 4096;  // chunks are sorted by their offsets, so that the right one is close before the last that begins earlier
  let low = 0;
  let high = cut.count;
  while (low < high) {
    const half = (low + high) >> 1;
    const {from} = boxOf(cut, half);
    const axis = from.findIndex((start, i) => start !== place[i]);
    if (axis < 0 || from[axis] < place[axis]) low = half + 1; else high = half;
  }
  for (let chunk = low - 1; chunk >= 0 && chunk > low - reach; --chunk) {
    const {from, to} = boxOf(cut, chunk);
    if (from.every((start, axis) => start <= place[axis] && place[axis] < to[axis])) return chunk;
  }
  return -1;
}

/** A line of all elements of a tensor, colored and labelled by owner; `marks` are ranges below it. */
function rangeStrip(t, marks = []) {
  const cut = tensors.cutOf(t);
  const elements = product(cut.shape);
  const high = 34;
  let runs = [];  // [x, width, chunk]
  let scale = 1;
  const find = (width) => {
    runs = [];
    for (let x = 0; x < width && elements; ++x) {
      const chunk = chunkOf(cut, Math.min(Math.floor((x + 0.5) / width * elements), elements - 1));
      const last = runs[runs.length - 1];
      if (last && last[2] === chunk) ++last[1]; else runs.push([x, 1, chunk]);
    }
    scale = width / elements;
  };
  return picture({
    label: `Which file holds which elements of ${tensors.names[t]}.`, first: 0,
    height: () => high + (marks.length ? 22 : 0),
    draw(context, width) {
      find(width);
      context.textAlign = 'center';
      for (const [x, wide, chunk] of runs) {
        const owner = chunk < 0 ? files.dataCount : tensors.ownerOf(t, chunk);
        context.fillStyle = colors[ownerColor(owner)];
        context.fillRect(x, 0, wide, high);
        if (wide > 3) {
          context.fillStyle = colors.page;
          context.fillRect(x + wide - 1, 0, 1, high);
        }
        text(context, String(owners.ofFile(owner).number), x + wide / 2, high / 2, wide - 4);
      }
      context.textAlign = 'left';
      for (const [, parameter, begin, size] of marks) {
        context.fillStyle = colors.quiet;
        context.fillRect(begin * scale, high + 3, 1, 16);
        text(context, tensors.names[parameter], begin * scale + 4, high + 12, size * scale - 6, colors.quiet);
      }
    },
    at(x, y) {
      const i = runs.findIndex(([from, wide]) => x >= from && x < from + wide);
      return i < 0 || y > high ? null : i;
    },
    outline: (i) => runs.length ? [runs[i][0], 1, runs[i][1], high - 2] : [0, 0, 0, 0],
    move: (i, dx, dy) => Math.min(Math.max(i + dx + dy, 0), runs.length - 1),
    tell(i) {
      if (!runs.length) return 'no elements';
      const chunk = runs[i][2];
      if (chunk < 0) return 'no chunk holds these elements';
      const box = boxOf(cut, chunk);
      return `${rangeText(box)}, ${counted(elementsOf(box), 'element')}: ${files.names[tensors.ownerOf(t, chunk)] ?? 'no file'}`;
    },
  });
}

function optimizerView(view) {
  const states = data.tensors.states;
  const all = tensors.names.map((_, t) => t).filter((t) => tensors.state[t] && hasBoxes(tensors.cutOf(t)));
  const statesOf = grouped(all.filter((t) => tensors.model[t]), (t) => tensors.model[t] - 1);  // of a parameter
  const inBuckets = all.filter((t) => states[tensors.state[t] - 1] === 'bucket');
  const parameters = inBuckets.filter((t) => tensors.names[t].endsWith('param'));
  const buckets = (parameters.length ? parameters : inBuckets)  // moments are cut as the parameters
    .sort((a, b) => tensors.names[a].localeCompare(tensors.names[b], 'en', {numeric: true}));
  if (!statesOf.size && !buckets.length)
    return view.append(notice('No optimizer ranges', 'The checkpoint has no optimizer state, or keeps it under keys that name no parameter.'));
  const who = files.haveRanks ? 'Labels are ranks.' : 'Labels are numbers of files, in the order of their names.';
  const strip = (t, title, marks) => {
    const plot = rangeStrip(t, marks);
    requestAnimationFrame(() => plot.redraw());
    return [make('h3', {}, title, ' ', make('span', {className: 'quiet'}, `${data.tensors.dtypes[tensors.dtype[t]]} ${shapeText(tensors.shapeOf(t))}`)), plot];
  };
  if (statesOf.size) {
    const body = make('div');
    const open = (parameter) => {
      const some = statesOf.get(parameter);
      const flat = some.some((t) => tensors.shape[t]) ? ' Flattened state is drawn fragment after fragment.' : '';
      body.replaceChildren(make('h3', {}, key(tensors.names[parameter], 140)),
        make('p', {}, `The elements from the first to the last, and who holds them. ${who}${flat}`),
        ...strip(parameter, 'parameter'), ...some.flatMap((t) => strip(t, states[tensors.state[t] - 1])));
    };
    view.append(...picker('Parameter', tensors.names, open, (t) => statesOf.has(t)), body);
    open([...statesOf.keys()].reduce((most, t) => tensors.bytesOf(t) > tensors.bytesOf(most) ? t : most));
  }
  if (buckets.length) {
    const most = 60;
    const places = grouped(data.buckets, ([bucket]) => bucket);
    const shown = buckets.slice(0, most);
    view.append(make('h3', {}, 'Buckets'), make('p', {}, `The state has the order of Megatron's gradient buffers; moments are cut as the parameters. ${who} `
      + (places.size ? 'Below each bucket: the parameters that it holds, found by their values.' : 'Which parameters a bucket holds is found by their values: dckpt report --stats does it.')));
    for (const t of shown) view.append(...strip(t, key(tensors.names[t], 110), places.get(t)));
    if (buckets.length > shown.length) view.append(make('p', {className: 'quiet'}, `The first ${shown.length} of ${count(buckets.length)}.`));
  }
}
