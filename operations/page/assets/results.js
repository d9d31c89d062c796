// Statistics, differences, and the phases of the save: parts that a report may have.

/** The columns in the order in which they are shown, and their places in the data. */
const statPlaces = {Furthest: 4, 'Abs max': 3, Mean: 1, Deviation: 2, L2: 5, Elements: 0, Zero: 6, Denormal: 7, NaN: 8, Inf: 9};
const statColumns = Object.keys(statPlaces).map((title) => ({title, number: true}));
const statValues = (numbers) => Object.values(statPlaces).map((place) => numbers[place]);

function statCells(numbers) {
  return Object.entries(statPlaces).map(([title, place]) => {
    const value = numbers[place];
    if (title === 'Elements') return count(value);
    if (title === 'Furthest') return value === null ? short(value) : `${short(value)} σ`;
    if (!['Zero', 'Denormal', 'NaN', 'Inf'].includes(title)) return short(value);
    if (!value) return '–';
    return title === 'NaN' || title === 'Inf' ? make('b', {style: {color: 'var(--bad)'}}, `! ${count(value)}`) : count(value);
  });
}

function statsView(view, show) {
  const {stats} = data;
  if (!stats) return view.append(notice('No statistics', ...reasonOf('statistics', 'This page was made without reading the elements. dckpt report PATH -o FILE --stats adds them.')));
  const stacks = grouped(stats.layers, ([stack]) => stack);
  if (stacks.size) view.append(make('h3', {}, 'Weights by layer'), make('p', {}, 'The largest absolute value and the deviation, each relative to the largest of the stack.'));
  for (const [stack, layers] of stacks) {
    for (const [column, name] of [[3, 'abs max'], [2, 'deviation']]) {
      const most = largest(layers.map(([, , numbers]) => numbers[column] ?? 0));
      view.append(heatRow(`${stack}, ${name}`, layers.map(([, layer, numbers]) =>
        [numbers[column] === null ? 'p7' : `h${Math.min(5, 1 + Math.floor(4.999 * numbers[column] / (most || 1)))}`, `layer ${layer}: ${name} ${short(numbers[column])}`]),
      layers.map(([, layer]) => layer), extremes(layers.map(([, layer, numbers]) => [layer, numbers[column]]), short)));
    }
  }
  if (stats.layers.length) {
    view.append(searchTable([{title: 'Layer'}, ...statColumns], stats.layers.map(([stack, layer, numbers]) =>
      ({name: `${stack} ${layer}`, values: [`${stack} ${layer}`, ...statValues(numbers)], cells: [`${stack} ${layer}`, ...statCells(numbers)]}))));
  }
  view.append(make('h3', {}, 'Tensors, outliers first'),
    make('p', {}, `Furthest is the distance of the furthest element from the mean, in deviations. Second moments of the optimizer come last: squares lie far from their mean by nature. ${stats.count > stats.tensors.length ? `The first ${count(stats.tensors.length)} of ${count(stats.count)} tensors. ` : ''}`),
    searchTable([{title: 'Key'}, ...statColumns], [
      {name: 'all weights', values: ['', ...statValues(stats.weights)], cells: [make('b', {}, 'all weights'), ...statCells(stats.weights)]},
      ...stats.tensors.map(([t, numbers]) => ({name: tensors.names[t], values: [tensors.names[t], ...statValues(numbers)],
        cells: [make('button', {className: 'link key', title: tensors.names[t], onclick: () => show('boxes', t)}, middle(tensors.names[t], 120)), ...statCells(numbers)]}))]));
}

/** Names the layers with the smallest and the largest number. Layers: [number of the layer, value or null]. */
function extremes(layers, shown) {
  const known = layers.filter(([, value]) => value !== null);
  if (!known.length) return '';
  const least = known.reduce((best, one) => one[1] < best[1] ? one : best);
  const most = known.reduce((best, one) => one[1] > best[1] ? one : best);
  return least[1] === most[1] ? shown(most[1]) : `${shown(least[1])} in layer ${least[0]} to ${shown(most[1])} in layer ${most[0]}`;
}

/** Why a part is missing: what could not be read, or the sentence for a page without it. */
function reasonOf(part, otherwise) {
  const missing = data.missing.find(([name]) => name === part);
  return [missing ? `It could not be made: ${missing[1]}` : otherwise];
}

/**
 * A line of cells with a name before; below are the numbers of the layers, or other words, and what
 * `told` says. Cells: [color, title].
 */
function heatRow(name, cells, numbers, told) {
  const step = Math.ceil(numbers.length / 12);
  const places = numbers.filter((_, i) => i % step === 0);
  return make('div', {className: 'heat'}, make('div', {}, make('div', {className: 'key'}, middle(name, 40)), make('div', {className: 'quiet'}, told)),
    make('div', {}, make('div', {className: 'strip', role: 'img', 'aria-label': cells.map(([, title]) => title).slice(0, 200).join('; ')},
      ...cells.map(([color, title]) => make('span', {title, style: {background: `var(--${color})`}}))),
    make('div', {className: 'places'}, ...places.map((place, i) =>
      make('span', {style: {flexGrow: String(Math.min(step, numbers.length - i * step))}}, String(place))))));
}

/** For keys without numbers of layers: a line for each module, and a cell for each tensor, or for some. */
function differencesByTensor({rows}) {
  const shares = new Map(rows.filter(([kind]) => kind !== 'object' && kind !== 'common').map(([, name, , share]) => [name, share]));
  const modules = grouped(tensors.names, (name) => name.split('.', 1)[0]);
  return [...modules].sort(([a], [b]) => naturally(a, b)).slice(0, 16).map(([module, names]) => {
    const each = Math.ceil(names.length / 120);
    const cells = [];
    for (let i = 0; i < names.length; i += each) {
      const most = names.slice(i, i + each).reduce((best, name) => (shares.get(name) ?? 0) > (shares.get(best) ?? 0) ? name : best);
      cells.push([heatOf(shares.get(most) ?? 0), `${most}: ${percent(shares.get(most) ?? 0)}`]);
    }
    return heatRow(module, cells, [], counted(names.length, 'tensor'));
  });
}

function differencesView(view, show) {
  const {comparison} = data;
  if (!comparison) return view.append(notice('Nothing compared', ...reasonOf('differences', 'dckpt report PATH -o FILE --compare OTHER shows what changed between two checkpoints.')));
  const compared = `${counted(comparison.tensors, 'tensor')} and ${counted(comparison.objects, 'object')} are in both`;
  view.append(make('p', {}, 'Compared with ', key(comparison.with), `. ${compared}${comparison.common ? '; the common state was compared, too' : ''}.`));
  if (!comparison.count) return view.append(notice('Equal', 'Everything that was compared has the same values.'));
  view.append(make('p', {}, make('b', {}, counted(comparison.count, 'difference')), '.'));
  const byLayer = comparison.layers.length > 0;
  view.append(make('h3', {}, byLayer ? 'By layer' : 'By tensor'),
    make('p', {}, byLayer ? 'The share of the elements that differ, in the tensor of the layer that differs most.' : 'The share of the elements that differ. The keys that differ have no numbers of layers.'),
    ...(byLayer ? comparison.layers.map(([stack, shares]) => heatRow(stack, shares.map((share, layer) => [heatOf(share), `layer ${layer}: ${percent(share)}`]), shares.map((_, layer) => layer), extremes([...shares.entries()], percent)))
      : differencesByTensor(comparison)), heatLegend());
  const place = new Map(tensors.names.map((name, t) => [name, t]));
  const keyOf = (name) => place.has(name) ? make('button', {className: 'link key', title: name, onclick: () => show('boxes', place.get(name))}, middle(name, 64)) : key(name, 64);
  const most = 500;
  view.append(make('h3', {}, 'All differences'),
    searchTable([{title: 'Kind'}, {title: 'Where'}, {title: 'Share', number: true}, {title: 'Max |a − b|', number: true}, {title: 'Here'}, {title: 'There'}],
      comparison.rows.slice(0, most).map(([kind, name, path, share, a, b, furthest]) => ({
        name: `${name} ${path}`, values: [kind, `${name} ${path}`, kind === 'values' ? share : null, furthest, a, b],
        cells: [{'only-in-a': 'only here', 'only-in-b': 'only there'}[kind] ?? kind, make('span', {}, name ? keyOf(name) : '', path ? make('span', {className: 'key'}, ` ${path}`) : ''),
          kind === 'values' ? percent(share) : '', furthest === null ? '' : short(furthest), key(a, 18), key(b, 18)]}))));
  if (comparison.count > most) view.append(make('p', {className: 'quiet'}, `The first ${count(Math.min(most, comparison.rows.length))}; dckpt diff --json lists all.`));
}

function saveView(view) {
  const {save} = data;
  if (!save) return view.append(notice('No report of the save', ...reasonOf('phases of the save', 'A save with save.report: true in its policy keeps one in the checkpoint, and this page then shows its phases.')));
  const seconds = (value) => `${value.toFixed(value < 10 ? 3 : 1)} s`;
  const end = largest([save.seconds, ...save.spans.map((span) => span.start + span.slowest)]) || 1;
  const part = (value) => `${100 * value / end}%`;
  view.append(make('p', {}, `${bytesText(save.bytes)} in ${counted(save.files, 'file')} in ${seconds(save.seconds)}. The plan was ${save.cached ? 'cached' : `made anew${save.why ? `: ${save.why}` : ''}`}.${save.engine ? ` Written ${save.engine}.` : ''}`),
    make('div', {className: 'gantt'}, ...save.spans.flatMap((span) => [
      make('span', {}, span.name),
      make('div', {className: 'lane', role: 'img', 'aria-label': `${span.name}: from ${seconds(span.start)}, fastest rank ${seconds(span.fastest)}, slowest ${seconds(span.slowest)}`},
        make('i', {style: {left: part(span.start), width: part(span.fastest)}}),
        make('i', {className: 'rest', style: {left: part(span.start + span.fastest), width: part(span.slowest - span.fastest)}})),
      make('span', {className: 'quiet'}, seconds(span.slowest))]),
    make('span'), make('div', {className: 'ends'}, make('span', {}, '0 s'), make('span', {}, seconds(end))), make('span')),
    make('p', {className: 'legend'}, 'Solid until the fastest rank was done, hatched until the slowest. Copy and sync are parts of write, drawn at its beginning and its end.'),
    make('h3', {}, 'Phases'),
    table([{title: 'Phase'}, {title: 'Minimum', number: true}, {title: 'Median', number: true}, {title: 'Maximum', number: true}, {title: 'Slowest', number: true}, {title: 'Bytes', number: true}],
      save.spans.map((span) => [span.name, seconds(span.fastest), seconds(span.median), seconds(span.slowest), `rank ${span.rank}`, span.bytes ? bytesText(span.bytes) : ''])));
}
