// What people see of a session: its messages folded into what was said and into runs that answer.

import { order, text } from './log.js';

const ENDS = { complete: 'complete', cancelled: 'cancelled', error: 'error' };

// Returns the nodes that are shown, in order: {kind: 'said' | 'run', key, ...}.
export function fold(messages) {
  const present = messages.filter((message) => !message.deleted);
  const attempts = attemptsOf(present);
  const nodes = new Map();
  const owners = new Map(); // the node of each message id, since parents are messages
  for (const message of present) {
    const { transport } = message;
    if (transport['run-id']) {
      addToRun(runOf(nodes, message), message, attempts);
      if (message.name === 'ai-output') owners.set(transport['codec-message-id'], transport['run-id']);
    } else if (message.name === 'ai-input' && message.codec.kind === 'user-message') {
      const key = transport['codec-message-id'];
      const said = nodes.get(key) ?? saidBy(key, message);
      said.text += message.codec.partType === 'text' ? text(message.data) : '';
      nodes.set(key, said);
      owners.set(key, key);
    }
  }
  return shown([...nodes.values()].sort((a, b) => order(a.serial, b.serial)), owners);
}

// A step's attempt is the serial of its start. The latest one counts, and what others wrote does
// not, whenever it arrives.
function attemptsOf(messages) {
  const steps = new Map();
  for (const { name, serial, transport } of messages) {
    if (name !== 'ai-step-start') continue;
    const key = stepKey(transport);
    steps.set(key, [...(steps.get(key) ?? []), serial]);
  }
  return steps;
}

const stepKey = (transport) => JSON.stringify([transport['run-id'], transport['step-id']]);

function counts({ transport }, attempts) {
  const starts = attempts.get(stepKey(transport));
  return !starts || !transport['step-start-serial'] || transport['step-start-serial'] === starts.at(-1);
}

const saidBy = (key, { serial, transport }) => ({
  kind: 'said', key, serial, text: '', parent: transport.parent, forkOf: transport['fork-of'],
});

function runOf(nodes, { serial, transport }) {
  const key = transport['run-id'];
  if (!nodes.has(key)) {
    nodes.set(key, { kind: 'run', key, serial, parent: transport.parent, started: false,
      status: 'active', error: '', attempt: 1, messages: new Map(), tools: new Map() });
  }
  return nodes.get(key);
}

function addToRun(run, message, attempts) {
  const { name, serial, transport } = message;
  if (name === 'ai-run-start') {
    Object.assign(run, { started: true, parent: transport.parent ?? run.parent });
  } else if (name === 'ai-run-suspend') {
    run.status = 'suspended';
  } else if (name === 'ai-run-resume') {
    run.status = 'active';
  } else if (name === 'ai-run-end') {
    run.status = ENDS[transport['run-reason']] ?? 'complete';
    run.error = transport['error-message'] ?? '';
    for (const tool of run.tools.values()) if (tool.state === 'asks') tool.state = 'unanswered';
  } else if (name === 'ai-step-start') {
    run.attempt = attempts.get(stepKey(transport)).indexOf(serial) + 1;
  } else if (name === 'ai-input' && message.codec.kind === 'user-message') {
    // Said to the run while it was under way.
    add(run, transport, 1, { key: serial, kind: 'steer', text: text(message.data) });
  } else if (name === 'ai-input') {
    answerTool(run, message);
  } else if (name === 'ai-output' && counts(message, attempts)) {
    addOutput(run, message, attempts.get(stepKey(transport))?.length ?? 1);
  }
}

function addOutput(run, { serial, transport, codec, data }, attempt) {
  const streaming = transport.status === 'streaming';
  const tool = run.tools.get(codec.toolCallId);
  switch (codec.kind) {
    case 'text':
    case 'reasoning':
      add(run, transport, attempt, { key: serial, kind: codec.kind, text: text(data), streaming });
      break;
    case 'tool-input':
      call(run, transport, attempt, codec, { input: data, state: streaming ? 'written' : 'called' });
      break;
    case 'tool-input-error':
      call(run, transport, attempt, codec, { input: data?.input, state: 'failed', output: data?.errorText });
      break;
    case 'tool-output-available':
      if (tool) Object.assign(tool, { state: 'returned', output: data?.output });
      break;
    case 'tool-output-error':
      if (tool) Object.assign(tool, { state: 'failed', output: data?.errorText });
      break;
    case 'tool-output-denied':
      if (tool) tool.state = 'denied';
      break;
    case 'tool-approval-request':
      if (tool?.state === 'called') tool.state = 'asks';
      break;
    case 'error':
      add(run, transport, attempt, { key: serial, kind: 'error', text: text(data) });
      break;
  }
}

function call(run, transport, attempt, { toolCallId, toolName = 'tool' }, rest) {
  const known = run.tools.get(toolCallId);
  if (known) return void Object.assign(known, rest);
  const made = { key: toolCallId, kind: 'tool', name: toolName, output: undefined, ...rest };
  run.tools.set(toolCallId, made);
  add(run, transport, attempt, made);
}

function add(run, transport, attempt, part) {
  const key = transport['codec-message-id'];
  if (!run.messages.has(key)) run.messages.set(key, { key, attempt, parts: [] });
  run.messages.get(key).parts.push(part);
}

function answerTool(run, { codec }) {
  const tool = run.tools.get(codec.toolCallId);
  if (codec.kind !== 'tool-approval-response' || !tool || tool.state !== 'asks') return;
  tool.state = codec.approved === 'true' ? 'approved' : 'denied';
}

// Of what was said anew, and of answers to the same, the newest is shown, with what follows from it.
function shown(nodes, owners) {
  const byKey = new Map(nodes.map((node) => [node.key, node]));
  const group = (node) => {
    if (node.kind === 'run') return `answers to ${node.parent}`;
    const first = byKey.get(owners.get(node.forkOf));
    return first && order(first.serial, node.serial) < 0 ? group(first) : node.key;
  };
  const newest = new Map(nodes.map((node) => [group(node), node]));
  const seen = new Set();
  for (const node of nodes) {
    const parent = byKey.get(owners.get(node.parent));
    if (newest.get(group(node)) === node && (!parent || seen.has(parent))) seen.add(node);
  }
  return [...seen];
}
