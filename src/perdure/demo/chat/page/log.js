// The messages of a session as they stand, however they were learned: whole in a snapshot, or piece
// by piece from deliveries. A delivery that comes twice changes nothing.

export class Log {
  #messages = new Map();

  get messages() {
    return [...this.#messages.values()].sort((a, b) => order(a.serial, b.serial));
  }

  replace(messages) {
    this.#messages.clear();
    for (const message of messages) this.receive(message);
  }

  receive(delivery) {
    const ai = delivery.extras?.ai;
    if (!ai || delivery.extras.ephemeral) return;
    const known = this.#messages.get(delivery.serial);
    if (known) return this.#later(known, delivery);
    if (delivery.action === 'message.append') return; // to what is older than the snapshot
    const { transport, codec = {} } = ai;
    const version = delivery.version?.serial ?? delivery.serial;
    const { serial, name, data } = delivery;
    this.#messages.set(serial, { serial, version, name, data, transport, codec, deleted: false });
  }

  #later(message, { action, version, data, extras }) {
    if (action === 'message.create' || version.serial <= message.version) return;
    message.version = version.serial;
    message.data = action === 'message.append' ? text(message.data) + text(data) : data;
    message.deleted = action === 'message.delete';
    const { transport = {}, codec = {} } = extras.ai;
    if (transport.status) message.transport = { ...message.transport, status: transport.status };
    message.codec = { ...codec, kind: message.codec.kind };
  }
}

export const text = (data) => (typeof data === 'string' ? data : '');
export const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
