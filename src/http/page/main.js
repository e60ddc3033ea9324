// The page: binds the session to the elements of index.html.

import * as api from './api.js';
import * as kept from './conversations.js';
import { Documents } from './documents.js';
import { $, copy, download, grow } from './dom.js';
import { bindKeys } from './keys.js';
import { Lessons } from './lessons.js';
import { List } from './list.js';
import { Log } from './log.js';
import { Session } from './session.js';
import { bindChoices, bindDialog, offerModels, offerRoutes, settings } from './settings.js';
import { lasting } from './storage.js';

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
  /** Gives what came of it, or null if it failed. */
  correct: async (message, correction) => {
    let kept = null;
    await tried(async () => {
      kept = await api.feedback({ turn: message.meta.turn, correction });
      message.correction = correction;
      session.changed();
    });
    return kept;
  },
  lessons: (ids) => lessons.open(ids),
  passage: (source) => documents.show(source),
  forgetLesson: async (id) => {
    let said = null;
    await tried(async () => { said = await lessons.forget(id); });
    return said;
  },
};

const log = new Log({ frame: $('log'), list: $('messages'), latest: $('latest'), actions });
const openSettings = bindDialog(() => { connect(); input.focus(); });

const lessons = new Lessons();
const documents = new Documents();
const list = new List({ session, tried, notice });

// The conversation on screen.

function drawConversation() {
  const { conversation } = session;
  const title = kept.title(conversation);
  $('title').value = title;
  document.title = title ? `${title} · Chimère` : 'Chimère';
  $('export').disabled = $('delete').disabled = conversation.messages.length === 0;
  log.draw(conversation, session.running());
  drawRunning();
  list.draw();
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
session.addEventListener('list', () => list.draw());
session.addEventListener('running', () => { drawRunning(); list.draw(); });
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

$('title').addEventListener('change', () => { session.rename($('title').value); list.draw(); });
$('title').addEventListener('keydown', ({ key }) => { if (key === 'Enter') input.focus(); });
$('export').addEventListener('click', () =>
  download(`${session.conversation.id}.md`, 'text/markdown', kept.toMarkdown(session.conversation)));
$('export-all').addEventListener('click', () => download('conversations.json', 'application/json', kept.exportAll()));
$('open-settings').addEventListener('click', () => openSettings());
$('theme').addEventListener('click', () => { $('theme').textContent = `Theme: ${window.chimereTheme.next()}`; });
$('theme').textContent = `Theme: ${window.chimereTheme.name()}`;
for (const button of document.querySelectorAll('[data-close]')) {
  button.addEventListener('click', () => button.closest('dialog').close());
}

bindKeys({
  stop: () => list.close() || session.stop(),
  fresh: () => list.fresh(),
  walk: (step) => list.walk(step),
  again: () => {
    const at = session.conversation.messages.findLastIndex(({ role }) => role === 'assistant');
    if (at >= 0) session.again(at);
  },
  editLast: () => log.editLast(),
  side: () => list.toggle(),
  settings: () => openSettings(),
  compose: () => input.focus(),
});

// The model: its name and whether it is there.

let connecting = null;

async function connect() {
  clearTimeout(connecting);
  const state = (word, text) => { $('model').dataset.state = word; $('model-name').textContent = text; };
  if (!await api.healthy()) {
    state('away', 'not ready');
    connecting = setTimeout(connect, HEALTH_MS);
    return;
  }
  try {
    const models = await api.models();
    if (!models.length) throw new api.Problem('No model', '');
    offerModels(models);
    const model = models.find(({ id }) => id === settings().model) ?? models[0];
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

bindChoices(connect);
drawConversation();
connect();
input.focus();
if (!lasting()) notice('This browser keeps nothing for this page: conversations go when it is closed.');
