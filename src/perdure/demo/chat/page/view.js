// Nodes as elements. What agents and people write is only ever set as text.

const STATES = {
  written: 'is being called', called: 'runs', asks: 'asks for your approval', approved: 'approved, runs',
  denied: 'was not approved', returned: 'returned', failed: 'failed', unanswered: 'was not answered',
};
const ENDINGS = { cancelled: 'Stopped.', error: 'Failed: ', suspended: 'Waits for somebody.' };

// Shows nodes in a container. `acts` are what its buttons do: edit, regenerate, answer.
export function show(container, nodes, acts) {
  keyed(container, nodes, (node) => `${node.kind} ${node.key}`, (node) =>
    node.kind === 'said' ? saidElement(node, acts) : runElement(node, acts));
}

function saidElement(node, acts) {
  const element = make('article', 'said');
  const words = make('p', 'words');
  const edit = button('Edit', () => acts.edit(node.key, words.textContent), 'quiet');
  element.append(label('You'), words, edit);
  return [element, ({ text }) => setText(words, text)];
}

function runElement(node, acts) {
  const element = make('article', 'run');
  const content = make('div', 'messages');
  const waiting = make('p', 'waiting');
  const ending = make('p', 'ending');
  const again = button('Answer anew', () => acts.regenerate(element.dataset.first), 'quiet');
  element.append(label('Agent'), content, waiting, ending, again);
  return [element, (run) => {
    const messages = [...run.messages.values()];
    element.dataset.status = run.status;
    element.dataset.first = messages[0]?.key ?? '';
    keyed(content, messages, ({ key }) => key, () => messageElement(acts));
    waiting.hidden = run.status !== 'active';
    const anew = run.attempt > 1 && messages.at(-1)?.attempt !== run.attempt;
    setText(waiting, anew ? `at work, attempt ${run.attempt} of this step` : 'at work');
    setText(ending, (ENDINGS[run.status] ?? '') + run.error);
    ending.hidden = !ending.textContent;
    again.hidden = !messages.length || ['active', 'suspended'].includes(run.status);
  }];
}

function messageElement(acts) {
  const element = make('div', 'message');
  const parts = make('div');
  const note = make('p', 'attempt');
  element.append(parts, note);
  return [element, (message) => {
    keyed(parts, message.parts, ({ key, kind }) => `${kind} ${key}`, (part) =>
      part.kind === 'tool' ? toolElement(part, acts) : textElement(part));
    setText(note, `Attempt ${message.attempt}: the one before was cut off, and this took its place.`);
    note.hidden = message.attempt === 1;
  }];
}

function textElement({ kind }) {
  const element = make('p', kind);
  return [element, ({ text, streaming }) => {
    setText(element, text);
    element.classList.toggle('streaming', Boolean(streaming));
  }];
}

function toolElement({ key, name }, acts) {
  const element = make('section', 'tool');
  element.setAttribute('aria-label', `Tool ${name}`);
  const state = make('span', 'state');
  const title = make('h3');
  const input = make('pre', 'input');
  const output = make('pre', 'output');
  const question = make('div', 'buttons question');
  const answer = (approved) => () => {
    for (const each of question.children) each.disabled = true;
    acts.answer(key, approved).finally(() => {
      for (const each of question.children) each.disabled = false;
    });
  };
  title.append(name, ' ', state);
  question.append(button('Approve', answer(true), 'approve'), button('Deny', answer(false), 'deny'));
  element.append(title, input, output, question);
  return [element, (tool) => {
    element.dataset.state = tool.state;
    setText(state, STATES[tool.state]);
    setText(input, readable(tool.input));
    setText(output, tool.output === undefined ? '' : readable(tool.output));
    output.hidden = tool.output === undefined;
    question.hidden = tool.state !== 'asks';
  }];
}

// A value as lines of `name: value`; what is still being written stays as it is.
function readable(value) {
  let found = value;
  if (typeof value === 'string') {
    try {
      found = JSON.parse(value);
    } catch {
      return value;
    }
  }
  if (found === null || typeof found !== 'object') return String(found);
  return Object.entries(found).map(([name, each]) =>
    `${name}: ${typeof each === 'string' ? each : JSON.stringify(each)}`).join('\n');
}

// Makes the children of a container those of a list, and keeps the elements that are there already:
// `build` returns an element and what updates it.
function keyed(container, list, keyOf, build) {
  const known = (container.known ??= new Map());
  const wanted = new Set(list.map(keyOf));
  for (const [key, { element }] of known) {
    if (wanted.has(key)) continue;
    element.remove();
    known.delete(key);
  }
  list.forEach((each, index) => {
    const key = keyOf(each);
    if (!known.has(key)) {
      const [element, update] = build(each);
      known.set(key, { element, update });
    }
    const { element, update } = known.get(key);
    update(each);
    if (container.children[index] !== element) container.insertBefore(element, container.children[index]);
  });
}

function make(name, className = '') {
  const element = document.createElement(name);
  if (className) element.className = className;
  return element;
}

function label(words) {
  const element = make('h2', 'who');
  element.textContent = words;
  return element;
}

function button(words, act, className) {
  const element = make('button', className);
  element.type = 'button';
  element.textContent = words;
  element.addEventListener('click', act);
  return element;
}

function setText(element, words) {
  if (element.textContent !== words) element.textContent = words;
}
