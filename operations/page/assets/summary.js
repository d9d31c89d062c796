// The head of the page, what is wrong, and facts.

const totals = (() => {
  const groups = data.groups.map((name) => ({name, tensors: 0, objects: 0, elements: 0, bytes: 0}));
  for (let t = 0; t < tensors.count; ++t) {
    const group = groups[tensors.group[t]];
    ++group.tensors;
    group.elements += product(tensors.shapeOf(t));
    group.bytes += tensors.bytesOf(t);
  }
  objects.names.forEach((_, i) => {
    const group = groups[objects.group[i]];
    ++group.objects;
    group.bytes += objects.bytes[i];
  });
  return groups.filter((group) => group.tensors + group.objects > 0);
})();

/** Returns [class, word, sentence]. */
function verdict() {
  const {opened, problem_count: problems, notes} = data.verdict;
  const errors = notes.filter(([severity]) => severity === 'error').length;
  if (!opened) return ['bad', '✕ Cannot be opened', data.verdict.problems[0][1]];
  if (problems) return ['bad', '✕ Damaged', `${counted(problems, 'problem')} found by dckpt verify.`];
  if (errors) return ['bad', '✕ Suspicious', `Complete, but ${counted(errors, 'finding')} in the values.`];
  if (!tensors.count && !objects.names.length) return ['good', '✓ Sound', 'It holds no tensors and no objects.'];
  const read = data.stats ? 'Every element was read.' : 'Only the structure was checked; dckpt verify --deep compares checksums.';
  return ['good', '✓ Sound', `Every file is there, and the chunks cover each tensor exactly. ${read}`];
}

function drawHead() {
  const [kind, word, sentence] = verdict();
  const figure = (value, name) => make('div', {}, make('b', {}, value), make('span', {}, name));
  const onDisk = files.bytes.reduce((sum, bytes) => sum + bytes, 0);
  const ranks = new Set(files.rank.filter(Boolean)).size;
  document.title = `${data.title.split('/').pop()} – checkpoint report`;
  const head = document.getElementById('head');
  head.append(
    make('h1', {}, make('span', {className: 'key', style: {fontSize: 'inherit'}}, data.title)),
    make('p', {className: `verdict ${kind}`}, make('strong', {}, word), make('span', {}, sentence)),
    make('div', {className: 'figures'},
      figure(bytesText(onDisk), `in ${counted(files.names.length, 'file')}`),
      ...(data.verdict.opened ? [
        figure(count(tensors.count), 'tensors'),
        figure(count(tensors.owner.length), 'chunks'),
        figure(count(objects.names.length), 'objects')] : []),
      ...(ranks ? [figure(count(ranks), 'ranks that wrote')] : []),
      ...(data.format ? [figure(data.format, data.producer || (data.version === null ? 'format' : `version ${data.version}`))] : [])));
}

function summaryView(view) {
  const rows = (list) => list.map(([name, value]) => [make('span', {className: 'quiet'}, name), value]);
  const {problems, problem_count: all, notes} = data.verdict;
  const leftOut = data.tensors.cuts_left_out;
  if (leftOut) data.missing.push([`boxes of ${counted(leftOut, 'tensor')}`, 'They would make the page too large: dckpt explain PATH KEY lists them.']);
  if (data.missing.length) {
    view.append(make('h3', {}, 'What this page cannot show'),
      table([{title: 'Part'}, {title: 'Because', sentence: true}], data.missing));
  }
  if (problems.length) {
    view.append(make('h3', {}, 'Problems'), table([{title: 'Kind'}, {title: 'What was found', sentence: true}], problems, true));
    if (all > problems.length) view.append(make('p', {className: 'quiet'}, `${count(all - problems.length)} more: dckpt verify lists all.`));
  }
  if (notes.length) view.append(make('h3', {}, 'Notes'), table([{title: 'Kind'}, {title: 'What was found', sentence: true}], notes, true));
  const states = ['', 'missing', 'too short', 'not a regular file'];
  const bad = files.names.map((_, i) => i).filter((i) => files.state[i]);
  if (bad.length) {
    view.append(make('h3', {}, 'Damaged files'),
      table([{title: 'File'}, {title: 'State'}, {title: 'Size', number: true}],
        bad.slice(0, 200).map((i) => [key(files.names[i]), states[files.state[i]], files.state[i] === 1 ? '–' : bytesText(files.bytes[i])]), true));
  }
  if (data.facts.length) view.append(make('h3', {}, 'The run'), table([{title: ''}, {title: '', sentence: true}], rows(data.facts)));
  if (totals.length) {
    const number = (value) => value ? count(value) : '';
    view.append(make('h3', {}, 'Contents'),
      table([{title: 'Group'}, {title: 'Tensors', number: true}, {title: 'Objects', number: true}, {title: 'Elements', number: true}, {title: 'Size', number: true}],
        totals.map((group) => [group.name, number(group.tensors), number(group.objects), number(group.elements), bytesText(group.bytes)])));
  }
  view.append(make('h3', {}, 'Files'));
  const order = files.names.map((_, i) => i).sort((a, b) => files.bytes[b] - files.bytes[a] || naturally(files.names[a], files.names[b]));
  view.append(table([{title: 'Name'}, {title: 'Size', number: true}], order.slice(0, 200).map((i) => [key(files.names[i]), bytesText(files.bytes[i])]), true));
  if (order.length > 200) view.append(make('p', {className: 'quiet'}, `The 200 largest of ${count(order.length)} files.`));
}

function argumentsView(view) {
  if (!data.arguments.length) return view.append(notice('No arguments', 'The checkpoint has no common state that could be read: formats that store tensors alone have none.'));
  const most = 300;
  const body = make('div');
  const input = make('input', {type: 'search', spellcheck: false, placeholder: 'part of a name or value'});
  const search = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const hits = data.arguments.filter(([name, value]) => words.every((word) => `${name} ${value}`.toLowerCase().includes(word)));
    body.replaceChildren(make('p', {className: 'quiet'}, `${counted(hits.length, 'value')}${hits.length > most ? `, the first ${most} are shown` : ''}`),
      table([{title: 'Name'}, {title: 'Value', sentence: true}], hits.slice(0, most).map(([name, value]) => [key(name, 90), make('span', {className: 'key'}, value)])));
  };
  input.addEventListener('input', search);
  view.append(make('p', {}, 'The common state: arguments of the run and everything else that is not sharded.'),
    make('div', {className: 'controls'}, make('label', {}, 'Search', input)), body);
  search();
}
