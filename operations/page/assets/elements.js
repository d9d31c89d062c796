// Elements are made of text only: nothing that a checkpoint contains is read as markup.

function make(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (name === 'style') Object.assign(element.style, value);
    else if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== 'role') element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** A map from what `keyOf` gives for the members of a list to these members. */
function grouped(list, keyOf) {
  const groups = new Map();
  for (const member of list) {
    const name = keyOf(member);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(member);
  }
  return groups;
}

const largest = (numbers) => numbers.reduce((most, one) => Math.max(most, one), 0);
const smallest = (numbers) => numbers.reduce((least, one) => Math.min(least, one), Infinity);
const count = (number) => number.toLocaleString('en-US');
const counted = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

function bytesText(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
  let unit = 0;
  while (bytes >= 1024 && unit + 1 < units.length) {
    bytes /= 1024;
    ++unit;
  }
  return `${unit ? bytes.toFixed(1) : Math.round(bytes)} ${units[unit]}`;
}

function short(number) {
  if (number === null) return '–';
  if (number === 0) return '0';
  const size = Math.abs(number);
  return size >= 1e5 || size < 1e-3 ? number.toExponential(2) : String(Number(number.toPrecision(4)));
}

const percent = (share) => share === 0 ? '0 %' : share < 0.001 ? '< 0.1 %' : `${(share * 100).toFixed(1)} %`;

/** Cuts a long name in the middle. */
const middle = (text, most) =>
  text.length <= most ? text : `${text.slice(0, Math.ceil(most / 2) - 1)}…${text.slice(1 - Math.floor(most / 2))}`;

const key = (text, most = 120) => make('span', {className: 'key', title: text}, middle(text, most));
const shapeText = (shape) => `(${shape.join(', ')})`;
const rangeText = ({from, to}) => `[${from.map((start, axis) => `${start}:${to[axis]}`).join(', ')}]`;

const rowsAtFirst = 20;  // page.css hides the others

/** A table; one that folds shows its first rows, and a button for the others. Columns: {title, number, sentence, sorted}; cells: texts or elements. */
function table(columns, rows, folds = false) {
  const kind = (column) => column.number ? 'number' : column.sentence ? 'sentence' : '';
  const cell = (content, i) => make('td', {className: kind(columns[i])}, content);
  const head = (column) => make('th', {className: kind(column), scope: 'col', ...(column.sorted ? {'aria-sort': column.sorted} : {})}, column.title);
  const scroll = make('div', {className: 'scroll'},
    make('table', {},
      make('thead', {}, make('tr', {}, ...columns.map(head))),
      make('tbody', {}, ...rows.map((cells) => make('tr', {}, ...cells.map(cell))))));
  if (!folds || rows.length <= rowsAtFirst) return scroll;
  scroll.classList.add('folded');
  const more = make('button', {className: 'more', onclick: () => { scroll.classList.remove('folded'); more.remove(); }}, `Show all ${count(rows.length)} rows`);
  return make('div', {}, scroll, more);
}

/** A table that folds, can be searched by the names of its rows and sorted by each column. Rows: {name, values, cells}. */
function searchTable(columns, rows) {
  const body = make('div');
  const input = make('input', {type: 'search', spellcheck: false, placeholder: 'part of a key'});
  let by = -1;  // column
  let up = true;
  const sortBy = (i) => {
    up = by === i ? !up : !columns[i].number;
    by = i;
    draw();
    body.querySelectorAll('th button')[i].focus();
  };
  const compare = (a, b) => typeof a === 'string' ? naturally(a, b) : a - b;
  const draw = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = rows.filter((row) => words.every((word) => row.name.toLowerCase().includes(word)));
    if (by >= 0) {  // what has no value comes last, either way
      const known = found.filter((row) => row.values[by] !== null).sort((a, b) => (up ? 1 : -1) * compare(a.values[by], b.values[by]));
      found.splice(0, found.length, ...known, ...found.filter((row) => row.values[by] === null));
    }
    const heads = columns.map((column, i) => ({...column, sorted: by !== i ? 'none' : up ? 'ascending' : 'descending',
      title: make('button', {className: 'link', onclick: () => sortBy(i)}, `${column.title}${by !== i ? '' : up ? ' ↑' : ' ↓'}`)}));
    body.replaceChildren(table(heads, found.map((row) => row.cells), true));
    if (!found.length) body.append(make('p', {className: 'quiet'}, 'No key contains this.'));
  };
  input.addEventListener('input', draw);
  draw();
  return make('div', {className: 'rows'}, make('div', {className: 'controls'}, make('label', {}, 'Search', input)), body);
}

const notice = (title, ...sentences) =>
  make('div', {className: 'notice'}, make('p', {}, make('b', {}, title)), ...sentences.map((sentence) => make('p', {}, sentence)));

const legend = (entries) =>
  make('div', {className: 'legend'}, ...entries.map(([color, text]) =>
    make('span', {}, make('i', {style: {background: `var(--${color})`}}), text)));

/** Colors of shares, from none to all; the steps differ in lightness. */
const heatSteps = [[0, 'none'], [0.001, 'up to 0.1 %'], [0.01, '1 %'], [0.1, '10 %'], [0.5, '50 %'], [1, 'more']];
const heatOf = (share) => `h${heatSteps.findIndex(([most]) => share <= most)}`;
const heatLegend = () => legend(heatSteps.map(([, text], i) => [`h${i}`, text]));

/** A search for one of many names; calls `pick` with its position. */
function picker(label, names, pick, accepts = () => true) {
  const found = make('div', {className: 'found'});
  const input = make('input', {type: 'search', spellcheck: false, placeholder: 'part of a key'});
  const choose = (i) => {
    found.replaceChildren();
    input.value = '';
    pick(i);
  };
  const search = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const hits = [];
    for (let i = 0; words.length && i < names.length && hits.length < 50; ++i) {
      const name = names[i].toLowerCase();
      if (accepts(i) && words.every((word) => name.includes(word))) hits.push(i);
    }
    found.replaceChildren(...hits.map((i) => make('button', {onclick: () => choose(i)}, key(names[i]))));
    if (words.length && !hits.length) found.append(make('span', {className: 'quiet'}, 'No key contains this.'));
    return hits;
  };
  input.addEventListener('input', search);
  input.addEventListener('keydown', (event) => {
    if (event.key === 'Escape') found.replaceChildren();
    if (event.key === 'Enter') search().slice(0, 1).forEach(choose);
    if (event.key === 'ArrowDown') found.querySelector('button')?.focus();
  });
  found.addEventListener('keydown', (event) => {
    const step = {ArrowDown: 'nextElementSibling', ArrowUp: 'previousElementSibling'}[event.key];
    if (!step) return;
    event.preventDefault();
    (document.activeElement[step] ?? input).focus();
  });
  return [make('div', {className: 'controls'}, make('label', {}, label, input)), found];
}
