'use strict';
// The data of the page. Columns of numbers are LEB128 in base64; names share their first components
// with the one before; cuts are grids or lists of boxes (cuts.h).

const data = JSON.parse(document.getElementById('data').textContent);

/** Orders names with the numbers in them by value: 2 before 10. */
const naturally = new Intl.Collator('en', {numeric: true}).compare;

function numbersOf(text) {
  const bytes = atob(text);
  const numbers = new Float64Array(bytes.length);
  let count = 0;
  for (let i = 0, factor = 1; i < bytes.length; ++i) {
    const byte = bytes.charCodeAt(i);
    numbers[count] += (byte & 127) * factor;
    factor *= 128;
    if (byte < 128) {
      ++count;
      factor = 1;
    }
  }
  return numbers.subarray(0, count);
}

function namesOf({shared, rest, rests}) {
  const counts = numbersOf(shared);
  let last = '';
  return Array.from(numbersOf(rest), (number, i) => {
    let end = 0;
    for (let k = 0; k < counts[i]; ++k) end = last.indexOf('.', end) + 1;
    last = last.slice(0, end) + rests[number];
    return last;
  });
}

const product = (extents) => extents.reduce((all, extent) => all * extent, 1);

/** Reads the table of cuts: {shape, count, pieces | boxes}; without either, the boxes are left out. */
function cutsOf(numbers) {
  const cuts = [];
  let at = 0;
  const take = (count) => numbers.subarray(at, at += count);
  while (at < numbers.length) {
    const shape = Array.from(take(numbers[at++]));
    const kind = numbers[at++];
    if (kind === 1) {
      const pieces = shape.map(() => take(numbers[at++]));
      const starts = pieces.map((sizes) => {
        let end = 0;
        return sizes.map((size) => (end += size) - size);
      });
      cuts.push({shape, pieces, starts, count: product(pieces.map((sizes) => sizes.length))});
    } else {
      const count = numbers[at++];
      cuts.push({shape, count, boxes: kind === 2 ? take(count * shape.length * 2) : null});
    }
  }
  return cuts;
}

/** The box of a chunk: where it begins and ends on each axis. */
function boxOf(cut, chunk) {
  const axes = cut.shape.length;
  const from = new Array(axes);
  const to = new Array(axes);
  if (cut.pieces) {
    for (let axis = axes - 1, rest = chunk; axis >= 0; --axis) {
      const count = cut.pieces[axis].length;
      const piece = rest % count;
      rest = (rest - piece) / count;
      from[axis] = cut.starts[axis][piece];
      to[axis] = from[axis] + cut.pieces[axis][piece];
    }
  } else {
    for (let axis = 0, at = chunk * axes * 2; axis < axes; ++axis, at += 2) {
      from[axis] = cut.boxes[at];
      to[axis] = cut.shape[axis] - cut.boxes[at + 1];
    }
  }
  return {from, to};
}

const elementsOf = ({from, to}) => from.reduce((all, start, axis) => all * (to[axis] - start), 1);
const hasBoxes = (cut) => Boolean(cut.pieces || cut.boxes);

const tensors = (() => {
  const of = data.tensors;
  const columns = {names: namesOf(of.names), count: of.count, cuts: cutsOf(numbersOf(of.cuts))};
  for (const name of ['kind', 'cut', 'owner', 'model', 'layer']) columns[name] = numbersOf(of[name]);
  const kinds = of.kinds.map((numbers) => numbers.split(' ').map(Number));
  ['dtype', 'item', 'shape', 'group', 'state', 'split', 'experts', 'layered'].forEach((name, i) => {
    columns[name] = columns.kind.map((kind) => kinds[kind][i]);
  });
  const shapes = of.shapes.map((text) => (text.match(/\d+/g) || []).map(Number));
  columns.shapeOf = (t) => columns.shape[t] ? shapes[columns.shape[t] - 1] : columns.cutOf(t).shape;
  columns.cutOf = (t) => columns.cuts[columns.cut[t]];
  columns.bytesOf = (t) => product(columns.shapeOf(t)) * columns.item[t];
  columns.first = [];  // of a tensor's owners
  let end = 0;
  for (let t = 0; t < of.count; ++t) {
    columns.first.push(end);
    end += columns.cutOf(t).count;
  }
  columns.ownerOf = (t, chunk) => columns.owner[columns.first[t] + chunk];
  columns.chunkBytes = (t, chunk) => {
    const cut = columns.cutOf(t);
    return hasBoxes(cut) ? elementsOf(boxOf(cut, chunk)) * columns.item[t] : columns.bytesOf(t) / cut.count;
  };
  return columns;
})();

const objects = {names: namesOf(data.objects.names)};
for (const name of ['bytes', 'group']) objects[name] = numbersOf(data.objects[name]);

const files = {names: namesOf(data.files.names)};
for (const name of ['bytes', 'rank', 'state']) files[name] = numbersOf(data.files[name]);
files.dataCount = data.files.data;
files.haveRanks = files.dataCount > 0 && files.rank.slice(0, files.dataCount).every((rank) => rank > 0);

/** Who holds chunks: ranks where all names of data files have one, else the files by their names. */
const owners = (() => {
  const list = [];  // {number, label, bytes}
  const of = [];    // a file's place in the list
  const order = Array.from({length: files.dataCount}, (_, file) => file).sort((a, b) =>
    files.rank[a] - files.rank[b] || naturally(files.names[a], files.names[b]));
  for (const file of order) {
    const rank = files.rank[file] - 1;
    if (!files.haveRanks) list.push({number: list.length, label: files.names[file], bytes: 0});
    else if (!list.length || list[list.length - 1].number !== rank) list.push({number: rank, label: `rank ${rank}`, bytes: 0});
    list[list.length - 1].bytes += files.bytes[file];
    of[file] = list.length - 1;
  }
  const none = {number: '–', label: 'no file', bytes: 0};
  return {list, of, ofFile: (file) => list[of[file]] ?? none, what: files.haveRanks ? 'rank' : 'file'};
})();
