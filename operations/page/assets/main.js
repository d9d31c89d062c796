// The views as tabs; each is made when it is first shown. A printed page has all of them.

const views = [
  ['summary', 'Summary', summaryView, true],
  ['sizes', 'Sizes', sizesView, entries.count],
  ['owners', 'Owners', ownersView, files.dataCount],
  ['boxes', 'Boxes', boxesView, tensors.count],
  ['optimizer', 'Optimizer', optimizerView, tensors.state.some(Boolean)],
  ['load', 'Load', loadView, tensors.count],
  ['stats', 'Statistics', statsView, data.stats],
  ['differences', 'Differences', differencesView, data.comparison],
  ['save', 'Save', saveView, data.save],
  ['arguments', 'Arguments', argumentsView, data.arguments.length],
].map(([id, title, fill, has]) => {
  const section = make('section', {id: `view-${id}`, role: 'tabpanel', 'aria-label': title, hidden: true});
  const tab = make('button', {id: `tab-${id}`, role: 'tab', className: has ? '' : 'empty', 'aria-controls': section.id, onclick: () => show(id)}, title);
  return {id, title, fill, section, tab, made: false};
});

function makeView(view) {
  if (view.made) return;
  view.made = true;
  view.section.append(make('h2', {}, view.title));
  view.fill(view.section, show);
}

/** Shows a view; of the boxes also a tensor. */
function show(id, tensor) {
  for (const view of views) {
    const selected = view.id === id;
    view.section.hidden = !selected;
    view.tab.setAttribute('aria-selected', String(selected));
    view.tab.tabIndex = selected ? 0 : -1;
    if (!selected) continue;
    makeView(view);
    if (tensor !== undefined) {
      view.section.open(tensor);
      view.tab.focus();
    }
  }
  redrawAll();
  try {
    history.replaceState(null, '', `#${id}`);
  } catch {
    // A page inside another one, as in a preview, has no address of its own.
  }
}

document.getElementById('tabs').addEventListener('keydown', (event) => {
  const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
  if (!step) return;
  const at = views.findIndex((view) => view.tab === document.activeElement);
  const next = views[(at + step + views.length) % views.length];
  show(next.id);
  next.tab.focus();
});

addEventListener('hashchange', () => {
  const id = location.hash.slice(1);
  if (views.some((view) => view.id === id)) show(id);
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redrawAll);

let before = null;
addEventListener('beforeprint', () => {
  before = views.find((view) => !view.section.hidden).id;
  document.documentElement.dataset.print = '';
  for (const view of views) {
    view.section.hidden = false;
    makeView(view);
  }
  redrawAll();
});
addEventListener('afterprint', () => {
  delete document.documentElement.dataset.print;
  show(before);
});

readColors();
drawHead();
document.getElementById('tabs').append(...views.map((view) => view.tab));
document.getElementById('views').append(...views.map((view) => view.section));
show(views.find((view) => view.id === location.hash.slice(1))?.id ?? 'summary');
