// The page: reads a session live, shows it, and sends what people say, answer and stop.

import { fold } from './fold.js';
import { Log } from './log.js';
import { show } from './view.js';

const AGAIN_MILLISECONDS = 1000;
const LOOK_MILLISECONDS = 700;
const MESSAGES = 5000;

const at = (id) => document.getElementById(id);
const session = sessionOfThisPage();
const log = new Log();
let nodes = [];
let cursor = '';
let edited = null;
let due = false;

// The URL carries the session, so that a reload and a second tab come back to it.
function sessionOfThisPage() {
  const url = new URL(location.href);
  if (!url.searchParams.get('session')) {
    url.searchParams.set('session', `chat-${crypto.randomUUID().slice(0, 8)}`);
    history.replaceState(null, '', url);
  }
  at('second-tab').href = url.href;
  return url.searchParams.get('session');
}

const path = (end) => `/sessions/${encodeURIComponent(session)}/${end}`;

async function post(url, body = {}) {
  const headers = { 'content-type': 'application/json' };
  try {
    const reply = await fetch(url, { method: 'POST', headers, body: JSON.stringify(body) });
    const document = await reply.json().catch(() => ({}));
    at('problem').textContent = reply.ok ? '' : document.message ?? `The server said ${reply.status}.`;
    return reply.ok;
  } catch {
    at('problem').textContent = 'The server cannot be reached. Try again in a moment.';
    return false;
  }
}

// --- what is read -------------------------------------------------------------------------------

function listen() {
  const behind = cursor ? `&after=${encodeURIComponent(cursor)}` : '';
  const source = new EventSource(path(`events?limit=${MESSAGES}${behind}`));
  const take = (event, change) => {
    cursor = event.lastEventId || cursor;
    change(JSON.parse(event.data));
    showSoon();
  };
  const replace = (event) => take(event, ({ messages, more }) => {
    log.replace(messages);
    at('earlier').hidden = !more;
  });
  source.addEventListener('open', () => connected('live'));
  source.addEventListener('snapshot', replace);
  source.addEventListener('resync', replace);
  source.addEventListener('message', (event) => take(event, (delivery) => log.receive(delivery)));
  source.addEventListener('error', () => {
    connected('reconnecting');
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, AGAIN_MILLISECONDS);
  });
}

function connected(state) {
  at('connection').dataset.state = state;
  at('connection').textContent = state;
}

// --- what is shown ------------------------------------------------------------------------------

function showSoon() {
  if (due) return;
  due = true;
  setTimeout(() => {
    due = false;
    const before = nodes;
    nodes = fold(log.messages);
    const atEnd = innerHeight + scrollY > document.body.scrollHeight - 120;
    show(at('transcript'), nodes, { edit, regenerate, answer });
    at('welcome').hidden = nodes.length > 0;
    at('stop').disabled = !nodes.some(isOpen);
    announce(before);
    if (atEnd) scrollTo(0, document.body.scrollHeight);
  });
}

const isOpen = (node) => node.kind === 'run' && ['active', 'suspended'].includes(node.status);

// Readers of a screen hear how an answer stands, and the whole of it once it is there.
function announce(before) {
  const run = nodes.findLast(({ kind }) => kind === 'run');
  const known = before.find(({ key }) => key === run?.key);
  if (!run || (known?.status === run.status && known.attempt === run.attempt)) return;
  const texts = [...run.messages.values()].flatMap(({ parts }) => parts).map(({ text }) => text ?? '');
  at('announcer').textContent = {
    active: run.attempt > 1 ? 'The answer was cut off and is written anew.' : 'The agent answers.',
    suspended: 'The agent asks for your approval.',
    complete: `The agent said: ${texts.join(' ')}`,
    cancelled: 'The answer was stopped.',
    error: 'The answer failed.',
  }[run.status];
}

// --- what people do -----------------------------------------------------------------------------

async function say(words) {
  const body = edited ? { text: words, edit: edited } : { text: words };
  at('send').disabled = true;
  if (await post(path('input'), body)) {
    at('words').value = '';
    keepOld();
  }
  at('send').disabled = false;
}

function edit(key, words) {
  edited = key;
  at('words').value = words;
  at('editing').hidden = false;
  at('words').focus();
}

function keepOld() {
  if (edited) at('words').value = '';
  edited = null;
  at('editing').hidden = true;
}

const regenerate = (key) => post(path('input'), { regenerate: key });
const answer = (call, approved) => post(path(`approvals/${encodeURIComponent(call)}`), { approved });

at('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  const words = at('words').value.trim();
  if (words) say(words);
});
at('words').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    at('composer').requestSubmit();
  } else if (event.key === 'Escape') {
    keepOld();
  }
});
at('keep').addEventListener('click', keepOld);
at('stop').addEventListener('click', () => {
  for (const { key } of nodes.filter(isOpen)) post(path('cancel'), { run_id: key });
});
for (const suggestion of at('suggestions').querySelectorAll('button')) {
  suggestion.addEventListener('click', () => say(suggestion.textContent));
}

// --- behind the page ----------------------------------------------------------------------------

const WORKER_STATES = { starting: 'takes over', working: 'works', killed: 'was killed' };

async function look() {
  try {
    const { workers, refunds, url } = await (await fetch('/backstage')).json();
    const items = workers.slice(-6).map(({ number, pid, state }) => {
      const item = document.createElement('li');
      item.dataset.state = state;
      item.textContent = `worker ${number} · pid ${pid} · ${WORKER_STATES[state]}`;
      return item;
    });
    const told = (list) => list.map(({ textContent }) => textContent).join();
    if (told(items) !== told([...at('workers').children])) at('workers').replaceChildren(...items);
    at('refunds').querySelector('output').textContent = refunds;
    at('command').textContent = `perdure runs --url ${url}`;
    at('kill').disabled = !workers.some(({ state }) => state === 'working');
  } catch {
    at('kill').disabled = true;
  }
}

async function lookAgain() {
  if (!document.hidden) await look();
  setTimeout(lookAgain, LOOK_MILLISECONDS);
}

at('kill').addEventListener('click', async () => {
  at('kill').disabled = true;
  await post('/backstage/kill');
  await look();
});

listen();
lookAgain();
