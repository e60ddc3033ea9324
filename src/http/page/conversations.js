// The conversations that this browser keeps. Each lies in the browser's storage under its own key, so that saving one
// rewrites no other; the oldest make room, and whoever saves is told of it.
//
// A conversation is {v: 1, id, title, titled, created, updated, messages}; times in ms.

import { local } from './storage.js';

const PREFIX = 'chimere.chat.';
const VERSION = 1;

/** Browsers give an origin about 5 million characters. */
export const LIMITS = { conversations: 200, chars: 4_000_000, title: 80 };

/** A new conversation; kept once it has a message. */
export function create() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  const id = `web-${[...bytes].map((byte) => byte.toString(16).padStart(2, '0')).join('')}`;
  return { v: VERSION, id, title: '', titled: false, created: Date.now(), updated: Date.now(), messages: [] };
}

/** The first words of the first question, until the user says otherwise. */
export function title(conversation) {
  if (conversation.titled) return conversation.title;
  const first = conversation.messages.find((message) => message.role === 'user')?.content ?? '';
  const line = first.trim().split('\n', 1)[0];
  return line.length > LIMITS.title ? `${line.slice(0, LIMITS.title - 1)}…` : line;
}

function parse(text) {
  try {
    const read = JSON.parse(text);
    const good = read?.v === VERSION && typeof read.id === 'string' && Array.isArray(read.messages) &&
      read.messages.every((m) => ['user', 'assistant', 'tool'].includes(m?.role) && typeof m.content === 'string');
    return good ? read : null;
  } catch {
    return null;
  }
}

function keys() {
  return Array.from({ length: local.length }, (_, at) => local.key(at)).filter((k) => k.startsWith(PREFIX));
}

/** What cannot be read stays where it is and is not listed. */
export function load(id) {
  return parse(local.getItem(PREFIX + id) ?? '');
}

/** All of them, the last used first: id, title, updated, and their size in characters. */
export function list() {
  return keys().flatMap((key) => {
    const text = local.getItem(key) ?? '';
    const read = parse(text);
    return read ? [{ id: read.id, title: title(read), updated: read.updated, chars: text.length }] : [];
  }).sort((a, b) => b.updated - a.updated);
}

/** Keeps a conversation. Returns the titles of those that made room, or null if it could not be kept at all. */
export function save(conversation) {
  const text = JSON.stringify({ ...conversation, title: title(conversation) });
  const others = list().filter(({ id }) => id !== conversation.id);
  const dropped = [];
  const drop = () => {
    const oldest = others.pop();
    remove(oldest.id);
    dropped.push(oldest.title);
  };
  if (text.length > LIMITS.chars) return null;
  const chars = () => others.reduce((sum, other) => sum + other.chars, text.length);
  while (others.length >= LIMITS.conversations || chars() > LIMITS.chars) drop();
  for (;;) {
    try {
      local.setItem(PREFIX + conversation.id, text);
      return dropped;
    } catch {
      // The browser's own limit is tighter than ours.
      if (!others.length) return null;
      drop();
    }
  }
}

export function remove(id) {
  local.removeItem(PREFIX + id);
}

export function removeAll() {
  keys().forEach((key) => local.removeItem(key));
}

/** Everything, to be kept elsewhere. */
export function exportAll() {
  return JSON.stringify({ chimere: 'conversations', v: VERSION, conversations: list().map(({ id }) => load(id)) }, null, 1);
}

/** One conversation for people to read. */
export function toMarkdown(conversation) {
  const parts = [`# ${title(conversation) || 'Conversation'}`];
  for (const { role, content, calls = [] } of conversation.messages) {
    parts.push(`## ${{ user: 'You', assistant: 'Answer', tool: 'Result of a tool' }[role]}`);
    if (content) parts.push(content);
    for (const call of calls) parts.push(`    ${call.name} ${call.arguments}`);
  }
  return `${parts.join('\n\n')}\n`;
}

/** Calls `changed` when another tab of this browser changed the list. */
export function watch(changed) {
  window.addEventListener('storage', ({ key }) => {
    if (key === null || key.startsWith(PREFIX)) changed();
  });
}
