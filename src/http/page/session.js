// What the user does: asks, stops, asks again, edits, answers a tool's call. Knows no element: `main.js` listens.
//
// Events: `conversation` (another one, or its messages changed in number), `message` {at} (one grew), `list`,
// `running`, `notice` {text}, `refused` (a key is needed).

import * as kept from './conversations.js';
import { emptyReply, requestFor, run } from './reply.js';

/** A reply under way is kept so often, ms: a reload then costs little of it. */
const SAVE_MS = 2000;

export class Session extends EventTarget {
  #running = new Map();
  #settings;
  #leaving = false;

  /** `settings` gives those in force at the moment. */
  constructor(settings) {
    super();
    this.#settings = settings;
    this.conversation = kept.create();
    // A reply that ends because the page goes did not fail: it stays as it was last kept.
    window.addEventListener('pagehide', () => { this.#leaving = true; });
    window.addEventListener('pageshow', () => { this.#leaving = false; });
  }

  #tell(name, detail = {}) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }

  /** Is a reply under way in this conversation? */
  running(id = this.conversation.id) {
    return this.#running.has(id);
  }

  fresh() {
    this.conversation = kept.create();
    this.#tell('conversation');
  }

  open(id) {
    // A conversation with a reply under way lives here, the others in storage.
    const found = this.#running.get(id)?.conversation ?? kept.load(id);
    if (!found) return this.#tell('notice', { text: 'This conversation can no longer be read.' });
    this.conversation = found;
    this.#tell('conversation');
  }

  rename(text) {
    const title = text.trim().slice(0, kept.LIMITS.title);
    Object.assign(this.conversation, { title, titled: title !== '' });
    if (this.conversation.messages.length) this.#save(this.conversation);
  }

  remove(id) {
    this.#running.get(id)?.abort.abort();
    this.#running.delete(id);
    kept.remove(id);
    this.#tell('list');
    if (id === this.conversation.id) this.fresh();
  }

  removeAll() {
    for (const id of [...this.#running.keys()]) this.remove(id);
    kept.removeAll();
    this.#tell('list');
    this.fresh();
  }

  ask(text) {
    this.conversation.messages.push({ role: 'user', content: text });
    return this.#reply();
  }

  stop() {
    this.#running.get(this.conversation.id)?.abort.abort();
  }

  /** Asks again for the answer at `at`; what came after it goes. */
  again(at) {
    if (this.running()) return;
    this.conversation.messages.length = at;
    return this.#reply();
  }

  /** Replaces a question; what came after it goes. */
  edit(at, text) {
    if (this.running()) return;
    this.conversation.messages.length = at;
    return this.ask(text);
  }

  /** The results of the calls of the last message, in their order. */
  results(texts) {
    const { calls } = this.conversation.messages.at(-1);
    calls.forEach((call, at) => {
      this.conversation.messages.push({ role: 'tool', tool_call_id: call.id, name: call.name, content: texts[at] });
    });
    return this.#reply();
  }

  /** A message was voted on or corrected. */
  changed() {
    this.#save(this.conversation);
  }

  #save(conversation) {
    const dropped = kept.save(conversation);
    if (dropped === null) {
      this.#tell('notice', { text: 'The browser has no room for this conversation: it goes when the page is closed.' });
    } else if (dropped.length) {
      this.#tell('notice', { text: `To make room, the oldest went: ${dropped.join(', ')}` });
    }
    this.#tell('list');
  }

  async #reply() {
    const { conversation } = this;
    const body = requestFor(conversation, conversation.messages, this.#settings());
    const message = emptyReply();
    const at = conversation.messages.push(message) - 1;
    const abort = new AbortController();
    this.#running.set(conversation.id, { conversation, abort });
    conversation.updated = Date.now();
    this.#save(conversation);
    this.#tell('conversation');
    this.#tell('running');
    let saved = Date.now();
    await run(message, body, abort.signal, () => {
      if (Date.now() - saved > SAVE_MS) {
        saved = Date.now();
        this.#save(conversation);
      }
      if (conversation === this.conversation) this.#tell('message', { at });
    });
    // A conversation that was deleted meanwhile stays deleted.
    if (this.#running.get(conversation.id)?.abort !== abort) return;
    this.#running.delete(conversation.id);
    conversation.updated = Date.now();
    if (!this.#leaving) this.#save(conversation);
    if (conversation === this.conversation) this.#tell('message', { at });
    this.#tell('running');
    if (message.problem?.status === 401) this.#tell('refused');
  }
}
