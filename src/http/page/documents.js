// The person's documents: the dialog that adds files by choosing or dropping them, lists and removes them, and shows the
// passage that an answer names. The daemon keeps them.

import * as api from './api.js';
import { $, h } from './dom.js';
import { change, settings } from './settings.js';

/** So many are drawn, the newest. */
const DRAWN_MAX = 200;
/** Files of one drop. */
const FILES_MAX = 500;
/** Passages that are shown around one. */
const AROUND = 3;

const button = (words, onclick) => h('button', { type: 'button', class: 'quiet', onclick }, words);
const count = (number, what) => `${number.toLocaleString('en')} ${what}${number === 1 ? '' : 's'}`;
const size = (bytes) => (bytes < 1e6 ? `${Math.max(1, Math.round(bytes / 1e3))} kB` : `${(bytes / 1e6).toFixed(1)} MB`);

/** Where a passage stands, in words. */
export const place = ({ page, sheet, row, line }) => (page ? `page ${page}` : row ? `sheet ${sheet}, row ${row}` : `line ${line}`);

export class Documents {
  #all = [];
  /** Files that wait to be sent; one is sent after the other. */
  #waiting = [];
  #sending = null;

  constructor() {
    $('open-documents').addEventListener('click', () => this.open());
    $('documents-choose').addEventListener('click', () => $('documents-files').click());
    $('documents-files').addEventListener('change', () => {
      this.#add([...$('documents-files').files]);
      $('documents-files').value = '';
    });
    $('documents-use').addEventListener('change', () => change({ documents: $('documents-use').checked }));
    $('documents-back').addEventListener('click', () => this.open());
    this.#bindDrops();
  }

  /** Files that are dropped anywhere on the page are added; the browser would leave the page for them. */
  #bindDrops() {
    const files = (event) => [...(event.dataTransfer?.types ?? [])].includes('Files');
    addEventListener('dragover', (event) => {
      if (!files(event)) return;
      event.preventDefault();
      document.body.classList.add('dropping');
    });
    const over = () => document.body.classList.remove('dropping');
    addEventListener('dragleave', (event) => { if (!event.relatedTarget) over(); });
    addEventListener('drop', (event) => {
      if (!files(event)) return;
      event.preventDefault();
      over();
      this.open();
      this.#add([...event.dataTransfer.files]);
    });
  }

  open() {
    this.#turn(true);
    $('documents-use').checked = settings().documents;
    if ($('documents').open) return this.#load();
    $('documents-said').replaceChildren();
    $('documents').showModal();
    // What is damaged is said once, and not after each change.
    return this.#load().then(() => this.#all.message && this.#say(this.#all.message));
  }

  /** To the list, or to the passages of one. */
  #turn(list) {
    $('documents-all').hidden = $('documents-kept').hidden = !list;
    $('documents-passages').hidden = list;
  }

  #say(...words) {
    $('documents-said').append(h('p', {}, ...words));
  }

  async #try(work, what = '') {
    try {
      await work();
    } catch (error) {
      this.#say(what && h('strong', {}, `${what}: `), error.message);
    }
  }

  #load() {
    return this.#try(async () => {
      this.#all = (await api.documents()).reverse();
      this.#draw();
    });
  }

  #draw() {
    $('documents-list').replaceChildren(...this.#all.slice(0, DRAWN_MAX).map((document) => this.#item(document)));
    const left = this.#all.length - DRAWN_MAX;
    $('documents-empty').hidden = this.#all.length > 0 && left <= 0;
    $('documents-empty').textContent = left > 0 ? `${left} older ones are not shown here.` : 'There are no documents yet.';
  }

  #item(document) {
    const { id, name, title, bytes, passages, collection, own, unread_pages: unread } = document;
    const facts = [title !== name && title, size(bytes), count(passages, 'passage'), collection !== 'documents' && collection,
      !own && 'of somebody else', unread && `without page ${unread.join(', ')}: unreadable`].filter(Boolean);
    // Another's may be refused; the daemon says so.
    return h('li', { 'data-document': id }, h('p', { class: 'name' }, name),
      h('div', { class: 'row' }, h('span', { class: 'faint' }, facts.join(' · ')),
        button('Show', () => this.show({ document: id, title })), button('Delete', () => this.#remove(document))));
  }

  #remove({ id, name }) {
    return this.#try(async () => {
      await api.removeDocument(id);
      $('documents-said').replaceChildren();
      this.#say(`${name} is deleted: no answer is shown it any more.`);
      await this.#load();
    }, name);
  }

  #add(files) {
    $('documents-said').replaceChildren();
    if (files.length > FILES_MAX) return this.#say(`These are more than ${FILES_MAX} files: add folders by \`chimere documents add\`.`);
    this.#waiting.push(...files);
    this.#sending ??= this.#sendAll().finally(() => { this.#sending = null; });
  }

  async #sendAll() {
    const bar = $('documents-progress');
    for (let file = this.#waiting.shift(); file; file = this.#waiting.shift()) {
      const left = this.#waiting.length ? `, ${count(this.#waiting.length, 'more file')} to come` : '';
      bar.hidden = false;
      bar.value = 0;
      const told = (share) => {
        bar.value = share;
        $('documents-now').textContent = share < 1 ? `Sending ${file.name}${left}` : `Reading ${file.name}${left}`;
      };
      told(0);
      await this.#try(async () => {
        const { passages, replaced, unchanged } = await api.addDocument(file, told);
        const how = unchanged ? 'was there already' : replaced ? 'takes the place of the old one' : 'is added';
        this.#say(h('strong', {}, file.name), ` ${how}: ${count(passages, 'passage')}.`);
      }, file.name);
    }
    bar.hidden = true;
    $('documents-now').textContent = '';
    await this.#load();
  }

  /** A document from its beginning, or around the passage that an answer was shown. */
  async show({ document: id, title, start }) {
    $('documents-said').replaceChildren();
    if (!$('documents').open) $('documents').showModal();
    this.#turn(false);
    $('documents-title-of').textContent = title;
    $('documents-text').replaceChildren();
    try {
      const { passages, at, more } = await api.passages(id, start ?? null, AROUND);
      const item = (passage) => h('li', { class: passage.passage === at ? 'used' : null },
        h('p', { class: 'faint' }, [place(passage), passage.heading].filter(Boolean).join(' · ')), h('p', { class: 'said' }, passage.text));
      $('documents-text').replaceChildren(...passages.map(item));
      if (more) $('documents-text').append(h('li', { class: 'faint' }, 'The document goes on.'));
      $('documents-text').querySelector('.used')?.scrollIntoView({ block: 'nearest' });
    } catch (error) {
      this.#say(error.status === 404 ? 'This document is no longer here.' : error.message);
    }
  }
}
