// The page: binds the session to the elements of index.html.

import * as api from './api.js';
import * as kept from './conversations.js';
import { $, copy, download, grow, h, iconButton } from './dom.js';
import { bindKeys } from './keys.js';
import { Log } from './log.js';
import { Session } from './session.js';
import { bindChoices, bindDialog, offerRoutes, settings } from './settings.js';

const session = new Session(settings);
const input = $('input');
/** A notice stays so long, ms. */
const NOTICE_MS = 8000;
/** While the model is not there it is asked for so often, ms. */
const HEALTH_MS = 2000;
/** Longest answer that is read out whole to a screen reader, characters. */
const SPOKEN_MAX = 1500;

let noticeTimer = null;
let contextTokens = null;

function notice(text) {
  $('notice').textContent = text;
  $('notice').hidden = false;
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => { $('notice').hidden = true; }, NOTICE_MS);
}

/** Runs what may fail; true if it went well. */
async function tried(work) {
  try {
    await work();
    return true;
  } catch (error) {
    notice(error.title ? `${error.title}: ${error.message}` : error.message);
    if (error.status === 401) openSettings('This daemon asks for a key.');
    return false;
  }
}

const actions = {
  ask: (text) => session.ask(text),
  again: (at) => { session.again(at); input.focus(); },
  edit: (at, text) => { session.edit(at, text); input.focus(); },
  results: (texts) => { session.results(texts); input.focus(); },
  copy: (text) => tried(async () => { await copy(text); notice('Copied'); }),
  askKey: () => openSettings(),
  vote: (message, vote) => tried(async () => {
    await api.feedback({ turn: message.meta.turn, vote });
    message.vote = vote;
    session.changed();
  }),
  correct: (message, correction) => tried(async () => {
    await api.feedback({ turn: message.meta.turn, correction });
    message.correction = correction;
    session.changed();
    notice('The daemon has the correction. Thank you.');
  }),
};

const log = new Log({ frame: $('log'), list: $('messages'), latest: $('latest'), actions });
const openSettings = bindDialog(() => { connect(); input.focus(); });

// The list of conversations.

const narrow = matchMedia('(max-width: 760px)');

function showSide(open) {
  document.body.dataset.side = open ? 'open' : 'closed';
  $('toggle').setAttribute('aria-expanded', String(open));
}

const sideOpen = () => document.body.dataset.side === 'open';

function go(id) {
  session.open(id);
  if (narrow.matches) showSide(false);
  input.focus();
}

function fresh() {
  session.fresh();
  if (narrow.matches) showSide(false);
  input.focus();
}

function drawList() {
  const entries = kept.list();
  $('list').replaceChildren(...entries.map(({ id, title, updated }) => {
    const current = id === session.conversation.id;
    const open = h('button', { type: 'button', class: 'entry', 'aria-current': current ? 'true' : null,
      title: new Date(updated).toLocaleString(), onclick: () => go(id) },
    session.running(id) && h('span', { class: 'dot busy' }, h('span', { class: 'sr' }, 'Reply under way: ')),
    h('span', { class: 'entry-title' }, title || 'Untitled'));
    return h('li', {}, open, iconButton('bin', `Delete ${title || 'Untitled'}`, () => confirmDelete(id, title)));
  }));
  $('list-empty').hidden = entries.length > 0;
}

/** Opens the conversation `step` places further down the list. */
function walk(step) {
  const ids = kept.list().map(({ id }) => id);
  const at = ids.indexOf(session.conversation.id);
  const next = at < 0 ? (step > 0 ? 0 : ids.length - 1) : at + step;
  if (ids[next]) go(ids[next]);
}

let deleting = null;

function confirmDelete(id, title) {
  deleting = id;
  $('confirm-title').textContent = id ? `Delete “${title || 'Untitled'}”?` : 'Delete all conversations?';
  $('confirm-text').textContent = `${id ? 'It goes' : 'They go'} from this browser. What the daemon remembers stays, unless you say otherwise.`;
  $('confirm-forget').checked = false;
  $('confirm').showModal();
}

async function doDelete() {
  const ids = deleting ? [deleting] : kept.list().map(({ id }) => id);
  const forget = $('confirm-forget').checked;
  if (forget && !await tried(async () => {
    let turns = 0;
    for (const id of ids) turns += await api.forget(id);
    notice(`The daemon forgot ${turns} ${turns === 1 ? 'turn' : 'turns'}.`);
  })) return;
  if (deleting) session.remove(deleting);
  else session.removeAll();
  input.focus();
}

// The conversation on screen.

function drawConversation() {
  const { conversation } = session;
  const title = kept.title(conversation);
  $('title').value = title;
  document.title = title ? `${title} · Chimère` : 'Chimère';
  $('export').disabled = $('delete').disabled = conversation.messages.length === 0;
  log.draw(conversation, session.running());
  drawRunning();
  drawList();
}

function drawRunning() {
  const running = session.running();
  const hadFocus = document.activeElement === (running ? $('send') : $('stop'));
  $('send').hidden = running;
  $('stop').hidden = !running;
  if (hadFocus) (running ? $('stop') : input).focus();
  drawContext();
}

function drawContext() {
  const used = session.conversation.messages.findLast((message) => message.meta?.context)?.meta.context;
  $('context').textContent = used && contextTokens
    ? `${used.toLocaleString('en')} of ${contextTokens.toLocaleString('en')} tokens used. Answers can be wrong.`
    : 'Answers can be wrong.';
}

/** Tells a screen reader what happened, once: the growing text would be read out word by word. */
function announce(at) {
  const message = session.conversation.messages[at];
  if (message?.role !== 'assistant') return;
  const { problem, stopped, content, calls } = message;
  $('announce').textContent = problem ? `${problem.title}. ${problem.message}` : stopped ? 'Stopped.'
    : content.slice(0, SPOKEN_MAX) || (calls.length ? `The model calls ${calls[0].name}.` : 'The answer is empty.');
}

session.addEventListener('conversation', drawConversation);
session.addEventListener('list', drawList);
session.addEventListener('running', () => { drawRunning(); drawList(); });
session.addEventListener('message', ({ detail: { at } }) => {
  const running = session.running();
  log.touch(at, running);
  if (running) return;
  announce(at);
  const { problem } = session.conversation.messages[at] ?? {};
  if (problem && (problem.status === 0 || problem.status >= 500)) connect();
});
session.addEventListener('notice', ({ detail: { text } }) => notice(text));
session.addEventListener('refused', () => openSettings('This daemon asks for a key.'));

// The composer.

function send() {
  const text = input.value;
  if (!text.trim() || session.running()) return;
  input.value = '';
  grow(input);
  $('announce').textContent = 'Sent.';
  session.ask(text);
}

$('composer').addEventListener('submit', (event) => { event.preventDefault(); send(); });
$('stop').addEventListener('click', () => session.stop());
input.addEventListener('input', () => grow(input));
input.addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});

// The rest of the frame.

$('new').addEventListener('click', fresh);
$('toggle').addEventListener('click', () => showSide(!sideOpen()));
$('shade').addEventListener('click', () => showSide(false));
$('title').addEventListener('change', () => { session.rename($('title').value); drawList(); });
$('title').addEventListener('keydown', ({ key }) => { if (key === 'Enter') input.focus(); });
$('export').addEventListener('click', () =>
  download(`${session.conversation.id}.md`, 'text/markdown', kept.toMarkdown(session.conversation)));
$('delete').addEventListener('click', () => confirmDelete(session.conversation.id, kept.title(session.conversation)));
$('export-all').addEventListener('click', () => download('conversations.json', 'application/json', kept.exportAll()));
$('delete-all').addEventListener('click', () => { $('settings').close(); confirmDelete(null); });
$('confirm').querySelector('form').addEventListener('submit', doDelete);
$('open-settings').addEventListener('click', () => openSettings());
$('theme').addEventListener('click', () => { $('theme').textContent = `Theme: ${window.chimereTheme.next()}`; });
$('theme').textContent = `Theme: ${window.chimereTheme.name()}`;
for (const button of document.querySelectorAll('[data-close]')) {
  button.addEventListener('click', () => button.closest('dialog').close());
}
narrow.addEventListener('change', () => showSide(!narrow.matches));
kept.watch(drawList);

bindKeys({
  stop: () => {
    if (narrow.matches && sideOpen()) showSide(false);
    else session.stop();
  },
  fresh,
  walk,
  again: () => {
    const at = session.conversation.messages.findLastIndex(({ role }) => role === 'assistant');
    if (at >= 0) session.again(at);
  },
  editLast: () => log.editLast(),
  side: () => showSide(!sideOpen()),
  settings: () => openSettings(),
  compose: () => input.focus(),
});

// The model: its name and whether it is there.

async function connect() {
  const state = (word, text) => { $('model').dataset.state = word; $('model-name').textContent = text; };
  if (!await api.healthy()) {
    state('away', 'not ready');
    setTimeout(connect, HEALTH_MS);
    return;
  }
  try {
    const [model] = await api.models();
    if (!model) throw new api.Problem('No model', '');
    contextTokens = model.x_chimere?.context_tokens ?? null;
    state('ready', model.id);
    drawContext();
  } catch (error) {
    state('away', error.status === 401 ? 'key needed' : 'not ready');
    return;
  }
  // Routes are for keys that may read the status; the others leave the choice to the daemon.
  const routes = await api.status().then((found) => found.actors?.orchestrator?.routes ?? [], () => []);
  if ($('route').options.length === 1) offerRoutes(routes);
}

showSide(!narrow.matches);
bindChoices();
drawConversation();
connect();
input.focus();
