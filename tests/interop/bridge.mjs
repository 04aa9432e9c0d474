// Runs sessions of the real JavaScript client for tests, over a channel that the tests keep.
//
// One JSON document a line. Tests ask: {ask, do: "call" | "get", on, path, args, as}, which calls or
// awaits a member of a named object, and keeps the result under `as` instead of returning it.
// Sessions ask the tests for what a channel does: {ask, channel, do, with}. Both sides answer:
// {answer, result} or {answer, error}. {deliver, message} is a delivery on a channel.
import { createInterface } from 'node:readline';
import { ErrorInfo } from 'ably';
import { Invocation } from '@ably/ai-transport';
import * as transport from '@ably/ai-transport/vercel';

const waiting = new Map();
const channels = new Map();
let asked = 0;

const say = (document) => process.stdout.write(`${JSON.stringify(document, plainly)}\n`);
const plainly = (_, value) => (value instanceof Error ? problem(value) : value);
const problem = (e) => ({ code: e.code, statusCode: e.statusCode, message: e.message });

const request = (channel, what, given) =>
  new Promise((resolve, reject) => {
    asked += 1;
    waiting.set(asked, { resolve, reject });
    say({ ask: asked, channel, do: what, with: given });
  });

class Channel {
  state = 'initialized';
  listeners = [];
  watchers = [];
  presence = {};
  object = {};

  constructor(name, key) {
    this.name = name;
    this.key = key;
    channels.set(key, this);
  }
  on(watcher) {
    this.watchers.push(watcher);
  }
  off(watcher) {
    this.watchers = this.watchers.filter((other) => other !== watcher);
  }
  async attach() {
    if (this.state !== 'attached') {
      this.attaching ??= request(this.key, 'attach').then(() => this.become('attached'));
      await this.attaching;
    }
    return null;
  }
  async detach() {
    await request(this.key, 'detach');
    this.become('detached');
  }
  become(current) {
    const change = { previous: this.state, current, resumed: false };
    this.state = current;
    for (const watcher of this.watchers) watcher(change);
  }
  async subscribe(listener) {
    this.listeners.push(listener);
    return this.attach();
  }
  unsubscribe(listener) {
    this.listeners = this.listeners.filter((other) => other !== listener);
  }
  publish(...given) {
    const messages = typeof given[0] === 'string' ? [{ name: given[0], data: given[1] }] : given.flat();
    return request(this.key, 'publish', messages);
  }
  appendMessage(message) {
    return request(this.key, 'append', message);
  }
  updateMessage(message) {
    return request(this.key, 'update', message);
  }
  async history({ limit = 100 } = {}) {
    const page = async (before) => {
      const { items, more } = await request(this.key, 'history', { before, limit });
      const next = async () => (more ? page(items.at(-1).serial) : null);
      return { items, hasNext: () => more, isLast: () => !more, next };
    };
    return page(null);
  }
}

const realtime = (clientId, key) => {
  const known = new Map();
  const get = (name) => known.get(name) ?? known.set(name, new Channel(name, key)).get(name);
  const connection = { state: 'connected', on() {}, off() {}, once() {} };
  return { options: {}, auth: { clientId }, connection, channels: { get } };
};

const stream = async function* (chunks) {
  for (const chunk of chunks) {
    if (chunk.wait) await new Promise(() => {});
    if (chunk.fail) throw new Error(chunk.fail);
    yield chunk;
  }
};

const objects = {
  Invocation,
  codec: transport.createUIMessageCodec(),
  // A session and whose it is: `kind` is createClientSession or createAgentSession.
  make: { session: (kind, clientId, key) => transport[kind]({ client: realtime(clientId, key), channelName: 'room' }) },
  fork: { fork: transport.createToolResultFork },
};

const given = (value) => {
  if (Array.isArray(value)) return value.map(given);
  if (value?.kept) return objects[value.kept];
  if (value?.stream) return stream(value.stream);
  return value;
};

const perform = async ({ do: what, on, path, args = [], as }) => {
  const names = path.split('.');
  const last = names.pop();
  const owner = names.reduce((object, name) => object[name], objects[on]);
  const found = what === 'call' ? owner[last](...args.map(given)) : owner[last];
  if (as) {
    objects[as] = found instanceof Promise ? await found : found;
    return null;
  }
  return await found;
};

process.on('unhandledRejection', (error) => say({ unhandled: problem(error) }));
for await (const line of createInterface({ input: process.stdin })) {
  const document = JSON.parse(line);
  if (document.deliver) {
    const channel = channels.get(document.deliver);
    for (const listener of channel.listeners) listener(document.message);
  } else if (document.answer) {
    const { resolve, reject } = waiting.get(document.answer);
    waiting.delete(document.answer);
    const { error } = document;
    if (error) reject(new ErrorInfo(error.message, error.code, error.statusCode));
    else resolve(document.result);
  } else {
    perform(document).then(
      (result) => say({ answer: document.ask, result: result ?? null }),
      (error) => say({ answer: document.ask, error: problem(error) }),
    );
  }
}
process.exit(0);
