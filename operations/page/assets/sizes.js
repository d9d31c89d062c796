// Sizes as a treemap by module: the tiles are buttons, so that the keyboard works.

const entries = {
  count: tensors.count + objects.names.length,
  name: (e) => e < tensors.count ? tensors.names[e] : objects.names[e - tensors.count],
  bytes: (e) => e < tensors.count ? tensors.bytesOf(e) : objects.bytes[e - tensors.count],
  group: (e) => e < tensors.count ? tensors.group[e] : objects.group[e - tensors.count],
};

/** The modules one step below a prefix, the largest first; a chain of single modules is one step. */
function modulesBelow({prefix, members}) {
  const found = new Map();
  for (const e of members) {
    const name = entries.name(e);
    const dot = name.indexOf('.', prefix.length);
    const step = dot < 0 ? name : name.slice(0, dot + 1);
    if (!found.has(step)) found.set(step, {prefix: step, members: [], bytes: 0});
    const module = found.get(step);
    module.members.push(e);
    module.bytes += entries.bytes(e);
  }
  for (const module of found.values()) {
    for (let dot; module.prefix.endsWith('.'); module.prefix = entries.name(module.members[0]).slice(0, dot + 1)) {
      dot = entries.name(module.members[0]).indexOf('.', module.prefix.length);
      const longer = entries.name(module.members[0]).slice(0, dot + 1);
      if (dot < 0 || !module.members.every((e) => entries.name(e).startsWith(longer))) break;
    }
    if (module.members.length === 1) module.prefix = entries.name(module.members[0]);
    module.label = module.prefix.slice(prefix.length).replace(/\.$/, '') || '(empty name)';
  }
  return [...found.values()].sort((a, b) => b.bytes - a.bytes || naturally(a.label, b.label));
}

/** The largest modules, and if they are more than `most`, one that stands for the rest of them. */
function largestOf(modules, most, prefix) {
  if (modules.length <= most) return modules;
  const rest = modules.slice(most - 1);
  return [...modules.slice(0, most - 1), {prefix, label: `${count(rest.length)} more`, isRest: true,
    members: rest.flatMap((module) => module.members), bytes: rest.reduce((sum, module) => sum + module.bytes, 0)}];
}

/** Squarified: rows are filled as long as the worst ratio of their tiles gets better. */
function tilesOf(modules, box) {
  const total = modules.reduce((sum, module) => sum + module.bytes, 0);
  const tiles = [];
  let {x, y, width, height} = box;
  let scale = width * height / (total || 1);
  let row = [];
  const worst = (areas, side) => {
    const sum = areas.reduce((all, area) => all + area, 0);
    return Math.max(side * side * Math.max(...areas) / (sum * sum), sum * sum / (side * side * Math.min(...areas)));
  };
  const flush = () => {
    const areas = row.map((module) => module.bytes * scale);
    const sum = areas.reduce((all, area) => all + area, 0);
    const upright = width >= height;
    const thick = sum / (upright ? height : width) || 0;
    let at = 0;
    row.forEach((module, i) => {
      const long = areas[i] / thick || 0;
      tiles.push({module, ...(upright ? {x, y: y + at, width: thick, height: long} : {x: x + at, y, width: long, height: thick})});
      at += long;
    });
    if (upright) { x += thick; width -= thick; } else { y += thick; height -= thick; }
    row = [];
  };
  for (const module of modules.filter((one) => one.bytes > 0)) {
    const side = Math.min(width, height);
    const areas = row.map((one) => one.bytes * scale);
    if (row.length && worst([...areas, module.bytes * scale], side) > worst(areas, side)) flush();
    row.push(module);
  }
  if (row.length) flush();
  return tiles;
}

const mostTiles = 120;
const leastTile = 480;  // square pixels: of an inner tile on average

function sizesView(view, show) {
  if (!entries.count) return view.append(notice('Nothing to measure', 'No tensors and no objects could be read.'));
  const root = {prefix: '', label: 'all', members: Array.from({length: entries.count}, (_, e) => e)};
  root.bytes = root.members.reduce((sum, e) => sum + entries.bytes(e), 0);
  let path = [root];
  const crumbs = make('div', {className: 'crumbs'});
  const map = make('div', {className: 'map', role: 'group', 'aria-label': 'Modules by size'});
  const list = make('div');
  const colorOf = (module) => {
    const byGroup = new Map();
    for (const e of module.members) byGroup.set(entries.group(e), (byGroup.get(entries.group(e)) ?? 0) + entries.bytes(e));
    return [...byGroup].reduce((most, one) => one[1] > most[1] ? one : most)[0];
  };
  const open = (module) => {
    if (module.members.length > 1) zoom([...path, module], true);
    else if (module.members[0] < tensors.count) show('boxes', module.members[0]);
  };
  /** Draws the modules inside a tile, and inside of these, as long as there is room. */
  const inner = (element, module, width, height, top) => {
    if (width < 60 || height < top + 26 || module.members.length < 2 || module.members.length > 20000) return;
    const room = {x: 6, y: top, width: width - 14, height: height - top - 8};
    const most = Math.min(Math.max(Math.floor(room.width * room.height / leastTile), 2), mostTiles);
    for (const part of tilesOf(largestOf(modulesBelow(module), most, module.prefix), room)) {
      const has = part.width > 50 && part.height > 20;
      const box = make('i', {style: {left: `${part.x}px`, top: `${part.y}px`, width: `${part.width}px`, height: `${part.height}px`, padding: has ? '' : '0'}}, has ? part.module.label : null);
      element.append(box);
      inner(box, part.module, part.width, part.height, 22);
    }
  };
  const tileButton = (tile, top) => {
    const {module, x, y, width, height} = tile;
    const title = `${module.isRest ? module.label : module.prefix}\n${bytesText(module.bytes)}, ${percent(module.bytes / top.bytes)}`;
    const button = make('button', {title, 'aria-label': title, onclick: () => open(module),
      style: {left: `${x}px`, top: `${y}px`, width: `${width}px`, height: `${height}px`, background: `var(--p${colorOf(module)})`}});
    if (width < 12 || height < 12) button.style.padding = '0';
    if (width > 34 && height > 22) button.append(make('b', {}, module.label));
    if (width > 34 && height > 40) button.append(make('small', {}, bytesText(module.bytes)));
    inner(button, module, width, height, 44);
    return button;
  };
  const draw = () => {
    const top = path[path.length - 1];
    const modules = modulesBelow(top);
    const shown = largestOf(modules, mostTiles, top.prefix);
    map.replaceChildren(...tilesOf(shown, {x: 0, y: 0, width: map.clientWidth, height: map.clientHeight}).map((tile) => tileButton(tile, top)));
    crumbs.replaceChildren(...path.flatMap((module, i) => [
      i ? make('span', {className: 'quiet', 'aria-hidden': 'true'}, '›') : null,
      make('button', {onclick: () => zoom(path.slice(0, i + 1), true), ...(i === path.length - 1 ? {'aria-current': 'true'} : {})},
        `${middle(module.label, 60)} `, make('span', {className: 'quiet'}, bytesText(module.bytes)))]).filter(Boolean));
    list.replaceChildren(table([{title: 'Module'}, {title: 'Entries', number: true}, {title: 'Size', number: true}, {title: 'Share', number: true}],
      modules.slice(0, 200).map((module) => [make('button', {className: 'link key', onclick: () => open(module)}, middle(module.label, 100)),
        count(module.members.length), bytesText(module.bytes), percent(module.bytes / (top.bytes || 1))]), true));
    if (modules.length > 200) list.append(make('p', {className: 'quiet'}, `The 200 largest of ${count(modules.length)}.`));
  };
  const zoom = (to, focus) => {
    path = to;
    draw();
    if (focus) (map.querySelector('button') ?? crumbs.lastChild).focus();
  };
  map.addEventListener('keydown', (event) => {
    if (event.key === 'Escape' && path.length > 1) zoom(path.slice(0, -1), true);
  });
  view.append(make('p', {}, 'Area is size. A click or Enter opens a module, Escape goes back; a tensor leads to its boxes.'),
    crumbs, map, legend(data.groups.map((name, i) => [`p${i}`, name]).filter(([, name]) => totals.some((group) => group.name === name))),
    make('h3', {}, 'The same as a table'), list);
  new ResizeObserver(() => { if (map.clientWidth) draw(); }).observe(map);
}
