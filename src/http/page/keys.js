// The keyboard: every shortcut in one table, which is also what the dialog lists. All have a modifier or are Escape,
// so none of them is in the way of typing or of a screen reader's own keys.

import { $, h } from './dom.js';

const TABLE = [
  ['Enter', 'send the message', null],
  ['Shift + Enter', 'start a new line', null],
  ['Esc', 'stop the reply, close what is open', null],
  ['Alt + N', 'new chat', 'KeyN', (on) => on.fresh()],
  ['Alt + ↑', 'conversation above', 'ArrowUp', (on) => on.walk(-1)],
  ['Alt + ↓', 'conversation below', 'ArrowDown', (on) => on.walk(1)],
  ['Alt + R', 'ask again for the last answer', 'KeyR', (on) => on.again()],
  ['Alt + E', 'edit the last message', 'KeyE', (on) => on.editLast()],
  ['Ctrl + Enter', 'send an edited message', null],
  ['Alt + M', 'go to the message box', 'KeyM', (on) => on.compose()],
  ['Alt + B', 'show or hide the list', 'KeyB', (on) => on.side()],
  ['Alt + S', 'settings', 'KeyS', (on) => on.settings()],
  ['Alt + /', 'this list', 'Slash', () => $('keys').showModal()],
];

/** Binds the table to what it does. */
export function bindKeys(on) {
  $('keys-list').append(...TABLE.flatMap(([keys, words]) => [h('dt', {}, h('kbd', {}, keys)), h('dd', {}, words)]));
  $('open-keys').addEventListener('click', () => $('keys').showModal());
  document.addEventListener('keydown', (event) => {
    // A dialog has the keyboard to itself.
    if (document.querySelector('dialog[open]') || event.isComposing) return;
    if (event.key === 'Escape') return on.stop();
    if (!event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    // By place, for with Alt some layouts type other characters.
    const [, , , act] = TABLE.find(([, , code]) => code === event.code) ?? [];
    if (!act) return;
    event.preventDefault();
    act(on);
  });
}
