// The view of owners: files by tensors, and the balance of the files.

function ownersView(view) {
  if (!files.dataCount) return view.append(notice('No data files', 'The metadata names none, or could not be read.'));
  const bytes = owners.list.map((owner) => owner.bytes);
  const mean = bytes.reduce((all, one) => all + one, 0) / bytes.length;
  const most = largest(bytes);
  const times = (one) => `${(one / (mean || 1)).toFixed(2)} × the average`;
  view.append(make('h3', {}, `Bytes of each ${owners.what}`),
    make('p', {}, `${counted(bytes.length, owners.what)} with ${bytesText(mean)} on average. The largest has ${bytesText(most)}, ${times(most)}; the smallest ${bytesText(smallest(bytes))}.`),
    columnChart({label: `Bytes of each ${owners.what}.`, values: bytes, names: owners.list.map((owner) => owner.number),
      hint: 'Dashed: the average. Point at a column, or press the arrow keys.',
      tell: (i) => `${owners.list[i].label}: ${bytesText(bytes[i])}, ${times(bytes[i])}`}));
  if (!tensors.count) return;
  view.append(make('h3', {}, `${files.haveRanks ? 'Ranks' : 'Files'} and tensors`),
    make('p', {}, `A row for each ${owners.what}, a column for each tensor in the order of the keys: the stronger the color, the larger the share of the tensor.`),
    ownerMatrix(), heatLegend());
}

function ownerMatrix() {
  const left = 76;
  const top = 22;
  const rows = Math.min(owners.list.length, 96);
  const rowOf = (file) => Math.floor(owners.of[file] * rows / owners.list.length);
  const tall = Math.min(24, Math.max(5, Math.floor(460 / rows)));
  let columns = 0;
  let wide = 0;
  let held = null;  // bytes in each row and column
  let whole = null;  // bytes of each column
  const lay = (width) => {
    const room = Math.max(Math.floor((width - left) / 3), 1);
    const wanted = Math.min(tensors.count, room);
    wide = Math.min((width - left) / wanted, 24);
    if (wanted === columns) return;
    columns = wanted;
    held = new Float64Array(rows * columns);
    whole = new Float64Array(columns);
    for (let t = 0; t < tensors.count; ++t) {
      const column = Math.floor(t * columns / tensors.count);
      for (let chunk = 0; chunk < tensors.cutOf(t).count; ++chunk) {
        const bytes = tensors.chunkBytes(t, chunk);
        const file = tensors.ownerOf(t, chunk);
        if (file < files.dataCount) held[rowOf(file) * columns + column] += bytes;
        whole[column] += bytes;
      }
    }
  };
  const firstOf = (column) => Math.ceil(column * tensors.count / columns);
  const labelOf = (row) => owners.list[Math.ceil(row * owners.list.length / rows)].label;
  const tell = ([column, row]) => {
    const from = firstOf(column);
    const to = firstOf(column + 1);
    const bytes = held[row * columns + column];
    const names = to - from > 1 ? `${counted(to - from, 'tensor')} from ${tensors.names[from]}` : tensors.names[from];
    return `${labelOf(row)}${rows < owners.list.length ? ' and its neighbors' : ''}: ${bytesText(bytes)} (${percent(bytes / (whole[column] || 1))}) of ${names}`;
  };
  const drawGroups = (context) => {
    const component = (column) => tensors.names[firstOf(column)].split('.', 1)[0];
    for (let from = 0, to = 1; from < columns; from = to++) {
      while (to < columns && component(to) === component(from)) ++to;
      const x = left + from * wide;
      context.fillStyle = colors.line;
      context.fillRect(x, 2, 1, top - 4);
      text(context, component(from), x + 5, top / 2, (to - from) * wide - 8, colors.quiet);
    }
  };
  return picture({
    label: 'Which file holds how much of which tensor.', first: [0, 0], tell,
    hint: 'Point at a cell, or press the arrow keys.',
    height: () => top + rows * tall,
    draw(context, width) {
      lay(width);
      drawGroups(context);
      const gap = wide > 5 && tall > 7 ? 1 : 0;
      for (let row = 0; row < rows; ++row) {
        context.textAlign = 'right';
        if (tall >= 12 || row % Math.ceil(14 / tall) === 0) text(context, labelOf(row), left - 8, top + (row + 0.5) * tall, left - 8, colors.quiet);
        context.textAlign = 'left';
        for (let column = 0; column < columns; ++column) {
          context.fillStyle = colors[heatOf(whole[column] ? held[row * columns + column] / whole[column] : 0)];
          context.fillRect(left + column * wide, top + row * tall, Math.max(wide - gap, 0.5), tall - gap);
        }
      }
    },
    at(x, y) {
      const column = Math.floor((x - left) / wide);
      const row = Math.floor((y - top) / tall);
      return column < 0 || column >= columns || row < 0 || row >= rows ? null : [column, row];
    },
    outline: ([column, row]) => [left + column * wide, top + row * tall, wide, tall],
    move: ([column, row], dx, dy) => [Math.min(Math.max(column + dx, 0), columns - 1), Math.min(Math.max(row + dy, 0), rows - 1)],
  });
}
