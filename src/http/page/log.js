// The messages on screen: drawn anew when their number changes, one by one while a reply grows; and the scroll,
// which follows the reply only as long as the reader is at its end.

import { h } from './dom.js';
import { Answer, ToolMessage, UserMessage } from './message.js';

/** So near to the end counts as there, pixels. */
const NEAR = 48;
/** Drawing may take this share of the time at most, so that a long reply leaves the page its breath. */
const SHARE = 0.25;

const EXAMPLES = ['What is 17 + 25?', 'Which muscles straighten the knee?', 'Write a Python function that reverses a string.',
  'How do I recognise a phishing mail?'];

export class Log {
  #views = [];
  #due = new Set();
  #timer = null;
  #cost = 0;

  constructor({ frame, list, latest, actions }) {
    Object.assign(this, { frame, list, latest, actions });
    frame.addEventListener('scroll', () => { latest.hidden = this.atEnd(); }, { passive: true });
    latest.addEventListener('click', () => { this.toEnd(); frame.focus(); });
  }

  atEnd() {
    return this.frame.scrollHeight - this.frame.scrollTop - this.frame.clientHeight < NEAR;
  }

  toEnd() {
    this.frame.scrollTop = this.frame.scrollHeight;
    this.latest.hidden = true;
  }

  /** Draws a conversation. Views of messages that are still there stay. */
  draw({ messages }, running) {
    const before = this.#views;
    this.#views = messages.map((message, at) => {
      const kept = before[at];
      return kept?.message === message ? kept.view : null;
    }).map((view, at) => ({ message: messages[at], view: view ?? this.#view(messages[at], at) }));
    this.list.replaceChildren(...this.#views.map(({ view }) => view.node));
    if (!messages.length) this.list.append(this.#welcome());
    this.#views.forEach((_, at) => this.#update(at, running));
    this.toEnd();
  }

  #view(message, at) {
    const Kind = { user: UserMessage, tool: ToolMessage, assistant: Answer }[message.role];
    return new Kind(message, at, this.actions);
  }

  #update(at, running) {
    const { message, view } = this.#views[at];
    const last = at === this.#views.length - 1;
    view.update(message, message.role === 'assistant' ? running && last : running, last);
  }

  /** The message at `at` grew: it is drawn soon. */
  touch(at, running) {
    this.#due.add(at);
    if (!running) return this.#flush(false);
    this.#timer ??= setTimeout(() => requestAnimationFrame(() => this.#flush(true)), this.#cost / SHARE);
  }

  #flush(running) {
    clearTimeout(this.#timer);
    this.#timer = null;
    const start = performance.now();
    const follow = this.atEnd();
    for (const at of this.#due) if (this.#views[at]) this.#update(at, running);
    this.#due.clear();
    if (!running) this.#views.forEach((_, at) => this.#update(at, false));
    if (follow) this.toEnd();
    else this.latest.hidden = false;
    this.#cost = performance.now() - start;
  }

  /** Opens the last question for editing. */
  editLast() {
    this.#views.findLast(({ message }) => message.role === 'user')?.view.edit();
  }

  #welcome() {
    const example = (text) => h('button', { type: 'button', class: 'example', onclick: () => this.actions.ask(text) }, text);
    return h('div', { class: 'welcome' }, h('h2', {}, 'What would you like to know?'),
      h('p', {}, `What you write goes to the daemon at ${location.host}. It keeps it, until you delete the conversation and let the daemon forget it.`),
      h('div', { class: 'examples' }, EXAMPLES.map(example)));
  }
}
