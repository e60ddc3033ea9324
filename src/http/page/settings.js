// What the user has set, kept in this browser, and the dialog that changes it. The key is `api.js`'s.

import { key } from './api.js';
import { $ } from './dom.js';
import { local } from './storage.js';

const KEY = 'chimere.settings';
const TIERS = ['fast', 'quality', 'ultra'];
const THOUGHTS = ['none', 'low', 'medium', 'high'];
/** Longest instruction and tool definitions, characters. */
const TEXT_MAX = 32_000;

/** `null` and '' leave the choice to the route. */
const DEFAULTS = { instruction: '', temperature: null, maxTokens: null, tools: [], builtIn: false, model: '', route: '', tier: '', thought: '', learn: true, lessons: true, documents: false, web: false };

function read() {
  try {
    const found = JSON.parse(local.getItem(KEY) ?? '{}');
    const same = (name) => typeof found[name] === typeof DEFAULTS[name];
    const number = (value) => (typeof value === 'number' ? value : null);
    return {
      instruction: same('instruction') ? found.instruction : '',
      temperature: number(found.temperature),
      maxTokens: number(found.maxTokens),
      tools: Array.isArray(found.tools) ? found.tools : [],
      builtIn: same('builtIn') ? found.builtIn : false,
      model: same('model') ? found.model : '',
      route: same('route') ? found.route : '',
      tier: TIERS.includes(found.tier) ? found.tier : '',
      thought: THOUGHTS.includes(found.thought) ? found.thought : '',
      learn: same('learn') ? found.learn : true,
      lessons: same('lessons') ? found.lessons : true,
      documents: same('documents') ? found.documents : false,
      web: same('web') ? found.web : false,
    };
  } catch {
    return { ...DEFAULTS };
  }
}

let current = read();

/** Those in force. */
export const settings = () => current;

/** Takes over and keeps some of them. */
export function change(some) {
  current = { ...current, ...some };
  try {
    local.setItem(KEY, JSON.stringify(current));
  } catch {
    // Where the storage is full they last as long as the page.
  }
}

/** The choices beside the composer; `chosen` is called when the model is another. */
export function bindChoices(chosen) {
  for (const [id, name] of [['which', 'model'], ['route', 'route'], ['tier', 'tier'], ['thought', 'thought']]) {
    const select = $(id);
    select.value = current[name];
    select.addEventListener('change', () => {
      change({ [name]: select.value });
      if (name === 'model') chosen();
    });
  }
}

/** Offers the models that chat, the served one first, where there are several; a choice that is no longer there falls back. */
export function offerModels([served, ...others]) {
  const further = others.filter(({ x_chimere: about }) => about?.state !== undefined && !about.embeds);
  const select = $('which');
  select.replaceChildren(new Option(`Model: ${served.id}`, ''), ...further.map(({ id }) => new Option(`Model: ${id}`, id)));
  select.hidden = further.length === 0;
  if (!further.some(({ id }) => id === current.model)) change({ model: '' });
  select.value = current.model;
}

/** Offers the daemon's routes; a choice that is no longer there falls back. */
export function offerRoutes(routes) {
  const select = $('route');
  for (const { route, description } of routes) {
    const option = new Option(`Route: ${route}`, route);
    option.title = description ?? '';
    select.add(option);
  }
  if (!routes.some(({ route }) => route === current.route)) change({ route: '' });
  select.value = current.route;
}

/** A number within bounds; null for nothing; throws with the reason. */
function number(text, what, low, high, whole) {
  if (!text.trim()) return null;
  const value = Number(text.replace(',', '.'));
  if (!Number.isFinite(value) || value < low || value > high || (whole && !Number.isInteger(value))) {
    throw new Error(`${what} must be ${whole ? 'a whole number' : 'a number'} from ${low} to ${high}.`);
  }
  return value;
}

function tools(text) {
  if (!text.trim()) return [];
  let read;
  try {
    read = JSON.parse(text);
  } catch (error) {
    throw new Error(`The tools are not valid JSON: ${error.message}`);
  }
  const list = Array.isArray(read) ? read : [read];
  const good = list.every((tool) => tool?.type === 'function' && typeof tool.function?.name === 'string');
  if (!good) throw new Error('Each tool must be {"type": "function", "function": {"name": …, "parameters": …}}.');
  return list;
}

/** Fills the dialog, and reads it back when the user saves; `saved` is called then. */
export function bindDialog(saved) {
  const dialog = $('settings');
  const field = (name) => $(`set-${name}`);
  field('instruction').maxLength = TEXT_MAX;
  field('tools').maxLength = TEXT_MAX;
  dialog.querySelector('form').addEventListener('submit', (event) => {
    event.preventDefault();
    try {
      change({
        instruction: field('instruction').value,
        temperature: number(field('temperature').value, 'The temperature', 0, 2, false),
        maxTokens: number(field('max-tokens').value, 'The longest reply', 1, 1_000_000, true),
        tools: tools(field('tools').value),
        builtIn: field('built-in').checked,
        learn: field('learn').checked,
        lessons: field('lessons').checked,
        documents: field('documents').checked,
        web: field('web').checked,
      });
      key.set(field('key').value.trim(), field('keep').checked);
    } catch (error) {
      $('settings-error').textContent = error.message;
      return;
    }
    dialog.close();
    saved();
  });
  return function open(why = '') {
    const { instruction, temperature, maxTokens, tools: defined, builtIn, learn, lessons, documents, web } = current;
    field('instruction').value = instruction;
    field('temperature').value = temperature ?? '';
    field('max-tokens').value = maxTokens ?? '';
    field('tools').value = defined.length ? JSON.stringify(defined, null, 1) : '';
    field('built-in').checked = builtIn;
    field('learn').checked = learn;
    field('lessons').checked = lessons;
    field('documents').checked = documents;
    field('web').checked = web;
    field('key').value = key.get();
    field('keep').checked = key.kept();
    $('settings-error').textContent = why;
    if (!dialog.open) dialog.showModal();
    field('key').focus();
  };
}
