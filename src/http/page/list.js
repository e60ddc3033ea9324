// The list of conversations: what it shows, how it opens and closes, and deleting.

import * as api from './api.js';
import * as kept from './conversations.js';
import { $, h, iconButton } from './dom.js';

/** So narrow that the list lies over the conversation. */
const narrow = matchMedia('(max-width: 760px)');

export class List {
  #deleting = null;

  /** `tried` runs what may fail and tells the user; `notice` tells the user. */
  constructor({ session, tried, notice }) {
    Object.assign(this, { session, tried, notice });
    $('new').addEventListener('click', () => this.fresh());
    $('toggle').addEventListener('click', () => this.toggle());
    $('shade').addEventListener('click', () => this.toggle());
    $('delete').addEventListener('click', () => this.#confirm(session.conversation.id, kept.title(session.conversation)));
    $('delete-all').addEventListener('click', () => { $('settings').close(); this.#confirm(null); });
    $('confirm').querySelector('form').addEventListener('submit', () => this.#delete());
    narrow.addEventListener('change', () => this.#show(!narrow.matches));
    kept.watch(() => this.draw());
    this.#show(!narrow.matches);
  }

  get #isOpen() {
    return document.body.dataset.side === 'open';
  }

  #show(open) {
    document.body.dataset.side = open ? 'open' : 'closed';
    $('toggle').setAttribute('aria-expanded', String(open));
    // On a small screen the list lies over the conversation, which then takes no input.
    document.querySelector('main').inert = open && narrow.matches;
  }

  /** What the button and the shortcut do: on a small screen the focus goes along. */
  toggle() {
    this.#show(!this.#isOpen);
    if (narrow.matches) (this.#isOpen ? $('new') : $('toggle')).focus();
  }

  /** Closes what lies over the conversation; false if nothing does. */
  close() {
    const over = narrow.matches && this.#isOpen;
    if (over) this.toggle();
    return over;
  }

  #leave() {
    if (narrow.matches) this.#show(false);
    $('input').focus();
  }

  #go(id) {
    this.session.open(id);
    this.#leave();
  }

  fresh() {
    this.session.fresh();
    this.#leave();
  }

  /** Opens the conversation `step` places further down. */
  walk(step) {
    const ids = kept.list().map(({ id }) => id);
    const at = ids.indexOf(this.session.conversation.id);
    const next = at < 0 ? (step > 0 ? 0 : ids.length - 1) : at + step;
    if (ids[next]) this.#go(ids[next]);
  }

  draw() {
    const entries = kept.list();
    $('list').replaceChildren(...entries.map((entry) => this.#entry(entry)));
    $('list-empty').hidden = entries.length > 0;
  }

  #entry({ id, title, updated }) {
    const name = title || 'Untitled';
    const open = h('button', { type: 'button', class: 'entry', title: new Date(updated).toLocaleString(),
      'aria-current': id === this.session.conversation.id ? 'true' : null, onclick: () => this.#go(id) },
    this.session.running(id) && h('span', { class: 'dot busy' }, h('span', { class: 'sr' }, 'Reply under way: ')),
    h('span', { class: 'entry-title' }, name));
    return h('li', {}, open, iconButton('bin', `Delete ${name}`, () => this.#confirm(id, title)));
  }

  /** Asks before deleting one, or all where `id` is null. */
  #confirm(id, title) {
    this.#deleting = id;
    $('confirm-title').textContent = id ? `Delete “${title || 'Untitled'}”?` : 'Delete all conversations?';
    $('confirm-text').textContent =
      `${id ? 'It goes' : 'They go'} from this browser. What the daemon remembers stays, unless you say otherwise.`;
    $('confirm-forget').checked = false;
    $('confirm').showModal();
  }

  async #delete() {
    const ids = this.#deleting ? [this.#deleting] : kept.list().map(({ id }) => id);
    if ($('confirm-forget').checked && !await this.tried(() => this.#forget(ids))) return;
    if (this.#deleting) this.session.remove(this.#deleting);
    else this.session.removeAll();
    $('input').focus();
  }

  async #forget(ids) {
    let turns = 0;
    for (const id of ids) turns += await api.forget(id);
    this.notice(`The daemon forgot ${turns} ${turns === 1 ? 'turn' : 'turns'}.`);
  }
}
