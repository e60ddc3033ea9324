// What people taught: the dialog that lists lessons, and adds, changes, shares and forgets them. The daemon keeps them.

import * as api from './api.js';
import { $, grow, h } from './dom.js';

/** Longest question and answer, characters, and wordings of one question. */
const QUESTION_MAX = 1000;
const ANSWER_MAX = 2000;
const WORDINGS_MAX = 16;
/** So many are drawn, the newest. */
const DRAWN_MAX = 200;
/** In place of a lesson's id: the daemon could not say in time whether there is one. */
export const UNKNOWN = 'unknown';

const button = (words, onclick) => h('button', { type: 'button', class: 'quiet', onclick }, words);

/** What is said of a correction that was recorded. */
export function ofCorrection({ lesson, retired = [], no_lesson: why }) {
  if (lesson === UNKNOWN) return 'The correction is kept. Whether it made a lesson is not known yet: see the lessons in a moment.';
  if (!lesson) return why ? `The correction is kept. It makes no lesson: ${why}.` : 'The correction is kept.';
  const instead = retired.length ? ' It takes the place of what was taught before.' : '';
  return `Kept as a lesson: answers to this question are shown it from now on.${instead}`;
}

export class Lessons {
  #all = [];
  #first = [];
  #edited = null;

  constructor() {
    $('lesson-form').addEventListener('submit', (event) => { event.preventDefault(); this.#save(); });
    $('lesson-cancel').addEventListener('click', () => this.#fill(null));
    $('lesson-wording').addEventListener('click', () => this.#wording('').focus());
    $('lesson-answer').maxLength = ANSWER_MAX;
    $('open-lessons').addEventListener('click', () => this.open());
  }

  /** Shows them; those of `ids` before others. */
  async open(ids = []) {
    this.#first = ids;
    this.#fill(null);
    this.#say('');
    $('lessons').showModal();
    await this.#load();
    if (this.#all.message) this.#say(this.#all.message);
    const gone = ids.filter((id) => !this.#all.some((lesson) => lesson.id === id));
    if (gone.length) this.#say('The answer was shown a lesson that is no longer here.');
  }

  /** What is to be said once it is forgotten. */
  async forget(id) {
    const gone = await api.forgetLesson(id);
    const held = gone.turns.length ? ' The correction itself stays with its conversation, until the daemon forgets that.' : '';
    return `Forgotten.${held}`;
  }

  #say(text, undo = null) {
    $('lessons-said').replaceChildren(text, undo ? button('Undo', undo) : '');
  }

  /** What goes wrong is said in the dialog, which covers the page's own notices. */
  async #try(work) {
    try {
      await work();
    } catch (error) {
      this.#say(error.title ? `${error.title}: ${error.message}` : String(error));
    }
  }

  #load() {
    return this.#try(async () => {
      this.#all = (await api.lessons()).reverse();
      this.#draw();
    });
  }

  #draw() {
    const first = (lesson) => (this.#first.includes(lesson.id) ? 0 : 1);
    const drawn = [...this.#all].sort((a, b) => first(a) - first(b)).slice(0, DRAWN_MAX);
    $('lessons-list').replaceChildren(...drawn.map((lesson) => this.#item(lesson)));
    const left = this.#all.length - drawn.length;
    $('lessons-empty').hidden = this.#all.length > 0 && left === 0;
    $('lessons-empty').textContent = left ? `${left} older ones are not shown here.`
      : 'Nothing was taught yet. Correct an answer, or write a lesson above.';
  }

  /** Several people's are seen by who may see everybody's. Whose a shared one is, others are not told. */
  #several() {
    return new Set(this.#all.map(({ principal }) => principal).filter(Boolean)).size > 1;
  }

  #item(lesson) {
    const { id, questions, answer, state, sharing, principal, known } = lesson;
    const shared = sharing === 'shared';
    const facts = [known === 'correction' ? 'from a correction' : 'written by hand',
      state === 'retired' ? 'replaced by a newer one' : shared ? 'shown to everybody' : 'private',
      this.#several() && principal && `of ${principal}`].filter(Boolean);
    // Whom a lesson does not belong to is not told whose it is.
    const own = principal !== undefined;
    return h('li', { class: this.#first.includes(id) ? 'used' : null, 'data-lesson': id },
      questions.map((question) => h('p', { class: 'question' }, question)), h('p', { class: 'said' }, answer),
      h('div', { class: 'row' }, h('span', { class: 'faint' }, facts.join(' · ')),
        own && state === 'new' && [button('Edit', () => this.#fill(lesson)),
          button(shared ? 'Make private' : 'Share with everybody', () => this.#share(lesson))],
        own && button('Forget', () => this.#forget(lesson))));
  }

  #wording(text) {
    const label = `Question${$('lesson-questions').children.length ? ', in other words' : ''}`;
    const area = h('textarea', { 'aria-label': label, rows: 1, maxlength: QUESTION_MAX, oninput: () => grow(area) });
    area.value = text;
    $('lesson-questions').append(area);
    $('lesson-wording').hidden = $('lesson-questions').children.length >= WORDINGS_MAX;
    return area;
  }

  /** Puts a lesson into the form that is to be changed, or none: a new one is written there. */
  #fill(lesson) {
    this.#edited = lesson;
    $('lesson-questions').replaceChildren();
    const areas = (lesson?.questions ?? ['']).map((question) => this.#wording(question));
    $('lesson-answer').value = lesson?.answer ?? '';
    $('lesson-save').textContent = lesson ? 'Save the lesson' : 'Teach this';
    $('lesson-cancel').hidden = !lesson;
    if (!lesson) return;
    areas.forEach(grow);
    grow($('lesson-answer'));
    areas[0].focus();
  }

  #save() {
    const areas = [...$('lesson-questions').children];
    const questions = areas.map(({ value }) => value.trim()).filter(Boolean);
    const answer = $('lesson-answer').value.trim();
    if (!questions.length || !answer) return this.#say('A lesson has a question and its answer.');
    const edited = this.#edited;
    return this.#try(async () => {
      if (edited) await api.editLesson(edited.id, { questions, answer });
      else await api.addLesson({ questions, answer });
      this.#fill(null);
      this.#say(edited ? 'Saved.' : 'Taught: it is used from the next message on.');
      await this.#load();
    });
  }

  #share({ id, sharing, updated_ms }) {
    return this.#try(async () => {
      const { sharing: now } = await api.editLesson(id, { sharing: sharing === 'shared' ? 'private' : 'shared', updated_ms });
      this.#say(now === 'shared' ? 'Everybody who asks this daemon is shown it.' : 'It is private again.');
      await this.#load();
    });
  }

  /** Teaches what was forgotten, and what is to be said of it. Who may not share has it for themselves. */
  async #again(words, sharing, whose) {
    let taught;
    let how = 'It is taught again.';
    try {
      taught = await api.addLesson({ ...words, sharing });
    } catch (error) {
      if (sharing !== 'shared' || error.param !== 'sharing') throw error;
      taught = await api.addLesson(words);
      how = 'It is taught again, and private: only the owner shares it with everybody.';
    }
    return taught.principal === whose ? how : `${how} It was ${whose}'s, and is your own now.`;
  }

  #forget(lesson) {
    const { id, questions, answer, sharing, state } = lesson;
    return this.#try(async () => {
      const said = await this.forget(id);
      if (this.#edited?.id === id) this.#fill(null);
      const again = () => this.#try(async () => {
        this.#say(await this.#again({ questions, answer }, sharing, lesson.principal));
        await this.#load();
      });
      // Another's would come back as one's own, and a replaced one in front of what replaced it.
      this.#say(said, state === 'new' && !this.#several() ? again : null);
      await this.#load();
    });
  }
}
