// How one message looks, and what can be done with it. Model text goes through `render.js`, all other text is set as
// text. `actions` are the page's: again, edit, results, vote, correct, lessons, forgetLesson, copy, askKey.

import { place } from './documents.js';
import { h, grow, iconButton } from './dom.js';
import { ofCorrection, UNKNOWN } from './lessons.js';
import { show } from './render.js';

/** A text area over a message, with what ends it. */
function editor({ label, value, done, save, cancel }) {
  const area = h('textarea', { 'aria-label': label, rows: 1, oninput: () => grow(area) });
  area.value = value;
  const submit = () => { if (area.value.trim()) save(area.value); };
  const form = h('form', { class: 'editor', onsubmit: (event) => { event.preventDefault(); submit(); } }, area,
    h('div', { class: 'end' },
      h('button', { type: 'button', class: 'plain', onclick: cancel }, 'Cancel'),
      h('button', { type: 'submit', class: 'main' }, done)));
  form.addEventListener('keydown', (event) => {
    if (event.key === 'Escape') cancel();
    else if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) submit();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  requestAnimationFrame(() => {
    grow(area);
    area.focus();
    form.scrollIntoView({ block: 'nearest' });
  });
  return form;
}

/** A question. `edit` is offered while no reply is under way. */
export class UserMessage {
  constructor(message, at, actions) {
    this.text = h('div', { class: 'said' }, message.content);
    this.editButton = iconButton('edit', 'Edit this message', () => this.edit());
    this.tools = h('div', { class: 'actions' }, iconButton('copy', 'Copy', () => actions.copy(message.content)),
      this.editButton);
    this.node = h('article', { class: 'message user' }, h('h2', { class: 'sr' }, 'You'), this.text, this.tools);
    Object.assign(this, { message, at, actions });
  }

  update(_, running) {
    this.editButton.disabled = running;
  }

  edit() {
    if (this.editButton.disabled || this.form) return;
    const close = () => { this.form.replaceWith(this.text); this.form = null; this.editButton.focus(); };
    this.form = editor({ label: 'Edit your message', value: this.message.content, done: 'Send', cancel: close,
      save: (text) => this.actions.edit(this.at, text) });
    this.text.replaceWith(this.form);
  }
}

/** What a tool gave back. */
export class ToolMessage {
  constructor(message) {
    this.node = h('article', { class: 'message tool' }, h('h2', { class: 'sr' }, 'Result of a tool'),
      h('details', {}, h('summary', {}, `Result of ${message.name ?? 'the tool'}`), h('pre', { tabindex: 0 }, message.content)));
  }

  update() {}
}

/** An answer, which grows. */
export class Answer {
  constructor(message, at, actions) {
    Object.assign(this, { message, at, actions });
    this.thoughtText = h('div', { class: 'thought-text' });
    this.thoughtHead = h('summary');
    this.thought = h('details', { class: 'thought', hidden: true }, this.thoughtHead, this.thoughtText);
    this.waiting = h('p', { class: 'waiting' }, 'Waiting for the first words');
    this.body = h('div', { class: 'body' });
    this.used = h('div', { class: 'calls used' });
    this.calls = h('div', { class: 'calls' });
    this.problem = h('div', { class: 'problem', hidden: true });
    this.meta = h('p', { class: 'meta' });
    this.actionsBar = h('div', { class: 'actions' });
    this.source = h('div', { hidden: true });
    this.below = h('div');
    this.taught = h('div', { class: 'taught', role: 'status' });
    this.node = h('article', { class: 'message answer' }, h('h2', { class: 'sr' }, 'Answer'), this.thought, this.used, this.waiting,
      this.body, this.calls, this.source, this.problem, h('div', { class: 'under' }, this.actionsBar, this.meta), this.below, this.taught);
  }

  /** `running` says whether this very answer is under way, `last` whether it ends the conversation. */
  update(message, running, last) {
    const { content, reasoning, calls, meta } = message;
    this.node.setAttribute('aria-busy', String(running));
    this.waiting.hidden = !running || content !== '' || reasoning !== '' || calls.length > 0;
    this.thought.hidden = reasoning.trim() === '';
    const thinking = running && content === '' && !calls.length;
    this.thoughtHead.textContent = thinking ? 'Thinking…' : meta.thought ? `Thought, ${meta.thought} tokens` : 'Thought';
    this.thought.classList.toggle('live', thinking);
    if (this.thoughtText.textContent !== reasoning) this.thoughtText.textContent = reasoning;
    show(this.body, content);
    this.showUsed(message.used ?? []);
    const state = JSON.stringify([calls, running, last]);
    if (state !== this.callState) this.showCalls(calls, !running && last);
    this.callState = state;
    this.meta.replaceChildren(...facts(message, running));
    if (running !== this.wasRunning) this.finish(message, running);
    this.wasRunning = running;
  }

  finish(message, running) {
    this.showProblem(message, running);
    this.showSource(Array.isArray(message.meta.lessons) ? message.meta.lessons : [], message.meta.sources);
    if (running) return this.actionsBar.replaceChildren();
    const { vote, meta, content, calls } = message;
    const bar = [];
    if (content) bar.push(iconButton('copy', 'Copy', () => this.actions.copy(content)));
    // A problem has a button of its own that asks again.
    if (!message.problem) bar.push(iconButton('again', 'Ask again', () => this.actions.again(this.at)));
    if (meta.turn && (content || calls.length)) {
      const thumb = (name, word, label) => iconButton(name, label, () => this.vote(word),
        { 'aria-pressed': String(vote === word), 'data-vote': word });
      bar.push(thumb('up', 'up', 'Good answer'), thumb('down', 'down', 'Bad answer'),
        h('button', { type: 'button', class: 'quiet', onclick: () => this.correct() },
          message.correction ? 'Corrected' : 'Correct it'));
    }
    this.actionsBar.replaceChildren(...bar);
  }

  async vote(word) {
    if (!await this.actions.vote(this.message, word)) return;
    for (const thumb of this.actionsBar.querySelectorAll('[data-vote]')) {
      thumb.setAttribute('aria-pressed', String(thumb.dataset.vote === word));
    }
  }

  correct() {
    if (this.below.firstChild) return;
    const close = () => { this.below.replaceChildren(); this.actionsBar.lastChild?.focus(); };
    this.below.append(h('p', { class: 'faint' }, 'What should it have said?'),
      editor({ label: 'What the answer should have been', value: this.message.correction ?? this.message.content,
        done: 'Send correction', cancel: close,
        save: async (text) => {
          const kept = await this.actions.correct(this.message, text);
          if (!kept) return;
          this.actionsBar.lastChild.textContent = 'Corrected';
          close();
          this.showTaught(kept);
        } }));
  }

  /** What became of a correction, and how to undo it. */
  showTaught(kept) {
    const lesson = kept.lesson === UNKNOWN ? null : kept.lesson;
    const quiet = (words, onclick) => h('button', { type: 'button', class: 'quiet', onclick }, words);
    const forget = async () => {
      const said = await this.actions.forgetLesson(lesson);
      if (said) this.taught.replaceChildren(h('span', { class: 'faint' }, said));
    };
    this.taught.replaceChildren(h('span', { class: 'faint' }, ofCorrection(kept)),
      ...(lesson ? [quiet('See lessons', () => this.actions.lessons([lesson])), quiet('Forget it', forget)] : []));
  }

  /** The lessons and the passages of documents and web pages that the answer was shown. */
  showSource(ids, sources) {
    const passages = Array.isArray(sources) ? sources : null;
    this.source.hidden = !ids.length && !passages;
    const words = ids.length > 1 ? `${ids.length} lessons` : 'a lesson';
    const lessons = ids.length > 0 && h('button', { type: 'button', class: 'quiet', onclick: () => this.actions.lessons(ids) },
      `Source: ${words}`);
    this.source.replaceChildren(...[lessons, passages && documents(passages, this.actions.passage)].filter(Boolean));
  }

  showProblem({ problem, stopped, content, reasoning }, running) {
    clearInterval(this.countdown);
    this.problem.hidden = running || !(problem || (stopped && !content));
    if (this.problem.hidden) return;
    if (!problem) return this.problem.replaceChildren(h('p', {}, reasoning ? 'Stopped before the answer.' : 'Stopped before the first word.'));
    const retry = h('button', { type: 'button', class: 'plain', onclick: () => this.actions.again(this.at) });
    const wait = () => {
      const left = Math.ceil(((problem.until ?? 0) - Date.now()) / 1000);
      retry.disabled = left > 0;
      retry.textContent = left > 0 ? `Try again in ${left} s` : 'Try again';
      if (left <= 0) clearInterval(this.countdown);
    };
    this.countdown = setInterval(wait, 250);
    wait();
    const key = problem.status === 401 &&
      h('button', { type: 'button', class: 'plain', onclick: () => this.actions.askKey() }, 'Enter the key');
    this.problem.replaceChildren(h('p', {}, h('strong', {}, problem.title)), h('p', {}, sentence(problem.message)),
      h('div', { class: 'row' }, key, retry));
  }

  /** Calls that the daemon ran: a folded line each. */
  showUsed(used) {
    const state = JSON.stringify(used);
    if (state === this.usedState) return;
    this.usedState = state;
    this.used.replaceChildren(...used.map(({ name, arguments: given, result, outcome, took_ms: took }) => {
      const end = outcome === undefined ? '…' : outcome === 'done' ? `, ${took} ms` : `, ${outcome}`;
      const pre = (what, text) => h('pre', { tabindex: 0, 'aria-label': `${what} of ${name}` }, text);
      return h('details', {}, h('summary', {}, 'Used ', h('code', {}, name), end),
        pre('Arguments', JSON.stringify(given, null, 2)), result !== undefined && pre('Result', result));
    }));
  }

  showCalls(calls, answerable) {
    const shown = calls.filter(Boolean).map(({ name, arguments: text }) => h('details', { open: true },
      h('summary', {}, 'Tool call: ', h('code', {}, name)), h('pre', { tabindex: 0, 'aria-label': `Arguments of ${name}` }, pretty(text))));
    this.calls.replaceChildren(...shown);
    if (!answerable || !calls.length) return;
    const areas = calls.map(({ name }) => h('textarea', { rows: 2, class: 'mono', 'aria-label': `Result of ${name}`,
      placeholder: `What ${name} gave back` }));
    this.calls.append(h('form', { class: 'results', onsubmit: (event) => {
      event.preventDefault();
      this.actions.results(areas.map((area) => area.value));
    } }, areas, h('div', { class: 'end' }, h('button', { type: 'submit', class: 'main' }, 'Send results'))));
  }
}

/** The daemon's messages begin small and end without a stop, as part of a longer line. */
function sentence(text) {
  const first = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?…]$/.test(first) ? first : `${first}.`;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** What is known of a reply: model, route, tier, length, speed. */
function facts({ meta, stopped, problem, content }, running) {
  const rate = meta.rate ? `${meta.rate < 10 ? meta.rate.toFixed(1) : Math.round(meta.rate)} tok/s` : null;
  const tokens = meta.tokens ? `${meta.tokens} ${meta.tokens === 1 ? 'token' : 'tokens'}` : null;
  const fact = (text, title) => text && h('span', { title }, text);
  return [
    !running && fact(meta.model, 'model'),
    !running && fact(meta.route && `route ${meta.route}`, meta.because),
    !running && fact(meta.tier && `tier ${meta.tier}`, 'how much work the answer got'),
    !running && fact(meta.generation ? `generation ${meta.generation}` : null, 'weights learned in a night'),
    fact(tokens, meta.firstMs ? `first words after ${Math.round(meta.firstMs)} ms` : null),
    fact(rate, 'the engine’s decode rate'),
    !running && fact(meta.finish === 'length' ? 'cut at the token limit' : null),
    !running && fact(stopped && content ? 'stopped' : null),
    !running && fact(meta.kept === false && 'not remembered', 'the daemon could not write it to its turn log: chimere doctor says why'),
    // The page was closed or loaded anew on the way.
    !running && fact(!meta.finish && !stopped && !problem ? 'cut off' : null),
  ].filter(Boolean);
}

/** Passages of documents and web pages, folded. Their text is shown as text. */
function documents(passages, open) {
  if (!passages.length) return h('span', { class: 'faint' }, 'Nothing was found.');
  // The address of a web page is shown as text: nothing is loaded from there.
  const item = (passage) => h('li', {},
    h('strong', {}, `[${passage.number}] ${passage.title}, ${passage.document ? place(passage) : passage.url}`), ' ',
    passage.document && h('button', { type: 'button', class: 'quiet', onclick: () => open(passage) }, 'Show in the document'),
    h('pre', {}, passage.text));
  const of = passages.every(({ document }) => document) ? ['documents', 'a document'] : ['documents and web pages', 'a web page'];
  const words = passages.length > 1 ? `${passages.length} passages of ${of[0]}` : `a passage of ${of[1]}`;
  return h('details', { class: 'passages' }, h('summary', {}, `Sources: ${words}`), h('ul', {}, ...passages.map(item)));
}
