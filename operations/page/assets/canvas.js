// Pictures of many cells: drawn on a canvas, read with the pointer or the arrow keys.

const plots = new Set();
const colors = {};

function readColors() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ['page', 'card', 'ink', 'quiet', 'line', 'accent', 'p0', 'p1', 'p2', 'p3', 'p4', 'p5', 'p6', 'p7', 'h0', 'h1', 'h2', 'h3', 'h4', 'h5'])
    colors[name] = style.getPropertyValue(`--${name}`).trim();
}

function redrawAll() {
  readColors();
  for (const plot of plots) plot.isConnected ? plot.redraw() : plots.delete(plot);
}

const ownerColor = (file) => file < files.dataCount ? `p${owners.ofFile(file).number % 8}` : 'h0';

/**
 * A picture: `height(width)`, `draw(context, width, height)`, `at(x, y)` gives the item at a point
 * (null: none), `outline(item)` its [x, y, width, height], `move(item, dx, dy)` its neighbor, and
 * `tell(item)` a sentence about it. An item is any value; the arrow keys begin at `first`.
 */
function picture({label, height, draw, at, outline, move, tell, first = 0, hint = ''}) {
  const canvas = make('canvas', {tabIndex: 0, role: 'img', 'aria-label': `${label} Arrow keys read it.`});
  const told = make('p', {className: 'told', 'aria-live': 'polite'}, hint);
  const figure = make('figure', {className: 'plot'}, canvas, told);
  const drawn = document.createElement('canvas');
  let current = null;
  let width = 0;
  let ratio = 1;
  const mark = () => {
    const context = canvas.getContext('2d');
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.drawImage(drawn, 0, 0);
    context.scale(ratio, ratio);
    if (current === null) return;
    context.strokeStyle = colors.accent;
    context.lineWidth = 2;
    context.strokeRect(...outline(current));
  };
  figure.redraw = () => {
    width = figure.clientWidth;
    if (!width) return;
    const tall = height(width);
    ratio = Math.max(window.devicePixelRatio || 1, document.documentElement.dataset.print === '' ? 2 : 1);
    drawn.width = canvas.width = Math.round(width * ratio);
    drawn.height = canvas.height = Math.round(tall * ratio);
    canvas.style.height = `${tall}px`;
    const context = drawn.getContext('2d');
    context.scale(ratio, ratio);
    context.font = '12px system-ui, "DejaVu Sans", sans-serif';
    context.textBaseline = 'middle';
    draw(context, width, tall);
    mark();
  };
  const show = (item) => {
    if (String(item) === String(current)) return;
    current = item;
    told.textContent = item === null ? hint : tell(item);
    mark();
  };
  canvas.addEventListener('pointermove', (event) => show(at(event.offsetX, event.offsetY)));
  canvas.addEventListener('pointerleave', () => show(null));
  canvas.addEventListener('blur', () => show(null));
  canvas.addEventListener('keydown', (event) => {
    const step = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
    if (!step) return;
    event.preventDefault();
    show(current === null ? first : move(current, ...step));
  });
  new ResizeObserver(() => { if (figure.clientWidth !== width) figure.redraw(); }).observe(figure);
  plots.add(figure);
  return figure;
}

function text(context, words, x, y, most, color = colors.ink) {
  let shown = words;
  for (let length = words.length; context.measureText(shown).width > most; --length) {
    if (length < 6) return;
    shown = middle(words, length - 1);
  }
  context.fillStyle = color;
  context.fillText(shown, x, y);
}

/** Columns side by side: `values[i]` is pale, `inner[i]` of it dark; a dashed line is the mean. */
function columnChart({label, values, inner = null, names = values.map((_, i) => i), tell, hint}) {
  const most = largest(values) || 1;
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const left = 76;
  const top = 10;
  const tall = 150;
  const step = (width) => Math.min((width - left) / values.length, 56);
  let wide = 1;
  return picture({
    label, hint, tell,
    height: () => top + tall + 22,
    draw(context, width) {
      wide = step(width);
      const gap = wide > 6 ? 2 : 0;
      values.forEach((value, i) => {
        for (const [size, color] of inner ? [[value, 'h2'], [inner[i], 'h4']] : [[value, 'h3']]) {
          context.fillStyle = colors[color];
          context.fillRect(left + i * wide, top + tall * (1 - size / most), Math.max(wide - gap, 0.5), tall * size / most);
        }
      });
      context.textAlign = 'right';
      text(context, bytesText(most), left - 8, top + 5, left - 8, colors.quiet);
      text(context, '0', left - 8, top + tall - 4, left, colors.quiet);
      context.textAlign = 'center';
      const every = Math.max(1, Math.ceil(34 / wide));
      for (let i = 0; i < values.length; i += every) text(context, String(names[i]), left + (i + 0.5) * wide - gap / 2, top + tall + 12, 60, colors.quiet);
      context.textAlign = 'left';
      context.setLineDash([4, 3]);
      context.strokeStyle = colors.ink;
      context.beginPath();
      context.moveTo(left, top + tall * (1 - mean / most));
      context.lineTo(left + values.length * wide, top + tall * (1 - mean / most));
      context.stroke();
      context.setLineDash([]);
    },
    at: (x) => x < left || x >= left + values.length * wide ? null : Math.floor((x - left) / wide),
    outline: (i) => [left + i * wide, top, wide, tall],
    move: (i, dx) => Math.min(Math.max(i + dx, 0), values.length - 1),
  });
}
