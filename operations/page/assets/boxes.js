// The boxes of one tensor in any number of dimensions: two axes are drawn, the others have a place.

/** Where the pieces along an axis begin and end. */
function cutsAlong(cut, axis) {
  if (cut.pieces) return [...cut.starts[axis], cut.shape[axis]];
  const places = new Set([0, cut.shape[axis]]);
  for (let chunk = 0; chunk < cut.count; ++chunk) {
    const {from, to} = boxOf(cut, chunk);
    places.add(from[axis]).add(to[axis]);
  }
  return [...places].sort((a, b) => a - b);
}

/** The chunks that contain a place on all axes but two. */
function chunksAt(cut, place, free) {
  const chunks = [];
  for (let chunk = 0; chunk < cut.count; ++chunk) {
    const {from, to} = boxOf(cut, chunk);
    if (from.every((start, axis) => free.includes(axis) || (start <= place[axis] && place[axis] < to[axis]))) chunks.push(chunk);
  }
  return chunks;
}

/** Draws chunks as rectangles. Pieces that are narrow get a part of the room that makes them visible. */
function boxPicture(t, place, [across, down]) {
  const cut = tensors.cutOf(t);
  const left = 76;
  const top = 20;
  const chunks = chunksAt(cut, place, [across, down]);
  const ticks = [down, across].map((axis) => axis === undefined ? [0, 1] : cutsAlong(cut, axis));
  const scales = [];
  const scale = (which, room) => {
    const ends = ticks[which];
    const even = room / (ends.length - 1) * 0.6;
    const whole = (room - even * (ends.length - 1)) / (ends[ends.length - 1] || 1);
    scales[which] = new Map();
    let at = 0;
    ends.forEach((end, i) => {
      at += i ? even + (end - ends[i - 1]) * whole : 0;
      scales[which].set(end, at);
    });
  };
  const rectangle = (chunk) => {
    const {from, to} = boxOf(cut, chunk);
    const span = (which, axis) => axis === undefined ? [0, scales[which].get(1)] : [scales[which].get(from[axis]), scales[which].get(to[axis])];
    const [y0, y1] = span(0, down);
    const [x0, x1] = span(1, across);
    return [left + x0, top + y0, x1 - x0, y1 - y0];
  };
  const tall = down === undefined ? 56 : Math.min(Math.max((ticks[0].length - 1) * 40, 120), 460);
  const drawTicks = (context, width) => {
    const label = (end) => count(end);
    context.textAlign = 'center';
    let free = left - 40;
    for (const [end, x] of across === undefined ? [] : scales[1]) {
      const half = context.measureText(label(end)).width / 2;
      const center = Math.min(Math.max(left + x, left + half), width - half);
      if (center - half < free) continue;
      text(context, label(end), center, top / 2 - 1, 90, colors.quiet);
      free = center + half + 8;
    }
    context.textAlign = 'right';
    free = 0;
    for (const [end, y] of down === undefined ? [] : scales[0]) {
      const middleOf = Math.min(Math.max(top + y, top + 6), top + tall - 5);
      if (middleOf < free) continue;
      text(context, label(end), left - 8, middleOf, left - 8, colors.quiet);
      free = middleOf + 14;
    }
  };
  return picture({
    label: `The boxes of ${tensors.names[t]}.`, first: 0,
    hint: `${counted(chunks.length, 'chunk')} in this picture. The label is the ${files.haveRanks ? 'rank' : 'number of the file'} that holds it.`,
    height: () => top + tall + 2,
    draw(context, width) {
      scale(0, tall);
      scale(1, width - left - 2);
      drawTicks(context, width);
      context.textAlign = 'center';
      for (const chunk of chunks) {
        const [x, y, wide, high] = rectangle(chunk);
        const owner = tensors.ownerOf(t, chunk);
        context.fillStyle = colors[ownerColor(owner)];
        context.fillRect(x, y, wide, high);
        if (wide < 4 || high < 4) continue;
        context.strokeStyle = colors.page;
        context.lineWidth = 1;
        context.strokeRect(x + 0.5, y + 0.5, wide, high);
        if (high > 13) text(context, String(owners.ofFile(owner).number), x + wide / 2, y + high / 2, wide - 4);
      }
    },
    at(x, y) {
      const i = chunks.findIndex((chunk) => {
        const [x0, y0, wide, high] = rectangle(chunk);
        return x >= x0 && x < x0 + wide && y >= y0 && y < y0 + high;
      });
      return i < 0 ? null : i;
    },
    outline: (i) => rectangle(chunks[i]),
    move: (i, dx, dy) => Math.min(Math.max(i + dx + dy * Math.max(1, chunks.findIndex((chunk, n) => n && rectangle(chunk)[1] > rectangle(chunks[0])[1])), 0), chunks.length - 1),
    tell(i) {
      const owner = tensors.ownerOf(t, chunks[i]);
      return `${rangeText(boxOf(cut, chunks[i]))}, ${bytesText(tensors.chunkBytes(t, chunks[i]))}: ${files.names[owner] ?? 'no file'}`;
    },
  });
}

function boxesView(view) {
  if (!tensors.count) return view.append(notice('No tensors', 'There is no tensor, or none could be read.'));
  const body = make('div');
  const open = (t) => {
    const cut = tensors.cutOf(t);
    const axes = cut.shape.map((_, axis) => axis);
    const pieces = axes.map((axis) => hasBoxes(cut) ? cutsAlong(cut, axis).length - 1 : 1);
    const byPieces = [...axes].sort((a, b) => pieces[b] - pieces[a] || b - a).slice(0, 2).sort((a, b) => b - a);
    const free = axes.length === 1 ? [0, undefined] : byPieces;
    const place = cut.shape.map(() => 0);
    const drawing = make('div');
    const redraw = () => {
      drawing.replaceChildren(boxPicture(t, place, free));
      drawing.firstChild.redraw();
    };
    const controls = make('div', {className: 'controls'});
    const layControls = () => {
      controls.replaceChildren();
      if (axes.length > 2) {
        ['Across', 'Down'].forEach((title, i) => controls.append(make('label', {}, title,
          make('select', {onchange: (event) => { free[i] = Number(event.target.value); if (free[0] === free[1]) free[1 - i] = axes.find((axis) => axis !== free[i]); layControls(); redraw(); }},
            ...axes.map((axis) => make('option', {value: String(axis), selected: axis === free[i]}, `axis ${axis} (${count(cut.shape[axis])})`))))));
      }
      for (const axis of axes.filter((one) => !free.includes(one) && pieces[one] > 1)) {
        const ends = cutsAlong(cut, axis);
        const told = make('span');
        const move = (i) => {
          place[axis] = ends[i];
          told.textContent = `${count(ends[i])} to ${count(ends[i + 1])}`;
        };
        controls.append(make('label', {}, `Axis ${axis} at`, make('input', {type: 'range', min: '0', max: String(ends.length - 2), value: '0',
          oninput: (event) => { move(Number(event.target.value)); redraw(); }}), told));
        move(0);
      }
    };
    const flat = tensors.shape[t] ? ` It is stored as flattened fragments, ${shapeText(cut.shape)}: fragments along each axis, then the elements of one.` : '';
    body.replaceChildren(make('h3', {}, key(tensors.names[t], 140)),
      make('p', {}, `${data.tensors.dtypes[tensors.dtype[t]]} ${shapeText(tensors.shapeOf(t))}, ${bytesText(tensors.bytesOf(t))} in ${counted(cut.count, 'chunk')}.${flat}`), controls, drawing);
    if (!hasBoxes(cut)) return drawing.append(notice('Boxes left out', 'This page keeps the boxes of the first tensors only, to stay small: dckpt explain PATH KEY lists them.'));
    layControls();
    redraw();
    const most = 200;
    body.append(make('h3', {}, 'Chunks'), table([{title: 'Box'}, {title: 'Size', number: true}, {title: 'File'}],
      Array.from({length: Math.min(cut.count, most)}, (_, chunk) => [make('span', {className: 'key'}, rangeText(boxOf(cut, chunk))),
        bytesText(tensors.chunkBytes(t, chunk)), key(files.names[tensors.ownerOf(t, chunk)] ?? 'no file')]), true));
    if (cut.count > most) body.append(make('p', {className: 'quiet'}, `The first ${most} of ${count(cut.count)}.`));
  };
  view.append(...picker('Tensor', tensors.names, open), body);
  const rank = (t) => hasBoxes(tensors.cutOf(t)) ? Math.min(tensors.cutOf(t).count, 64) + (tensors.state[t] ? 0 : 0.5) : 0;
  let best = 0;
  for (let t = 1; t < tensors.count; ++t) if (rank(t) > rank(best)) best = t;
  open(best);
  view.open = open;
}
