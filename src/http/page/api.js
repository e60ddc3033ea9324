// The daemon's HTTP interface as this page uses it: the key, requests, event streams, and errors in words.

import { local, tab } from './storage.js';

const KEY = 'chimere.key';

/** What went wrong, for the user to read. `retryAfterS` is set where the daemon said when to come back. */
export class Problem extends Error {
  constructor(title, message, { status = 0, code = null, param = null, retryAfterS = null } = {}) {
    super(message);
    Object.assign(this, { title, status, code, param, retryAfterS });
  }

  /** What is kept with a message. */
  plain() {
    const { title, message, status, code } = this;
    return { title, message, status, code };
  }
}

/** The API key. It lives as long as the tab, unless the user asks for more. */
export const key = {
  get: () => tab.getItem(KEY) ?? local.getItem(KEY) ?? '',
  kept: () => local.getItem(KEY) !== null,
  set(value, keep) {
    tab.removeItem(KEY);
    local.removeItem(KEY);
    if (value) (keep ? local : tab).setItem(KEY, value);
  },
};

const TITLES = {
  400: 'The request was refused',
  401: 'This daemon asks for a key',
  403: 'This key may not do that',
  404: 'Not found',
  413: 'The conversation is too large to send',
  421: 'This address is not one of the daemon’s',
  429: 'Too many replies are under way',
  500: 'The daemon failed',
  501: 'Not built yet',
  503: 'The daemon cannot answer right now',
};

function problem(status, error, retryAfterS) {
  const { message = `The daemon answered with status ${status}.`, code = null, param = null } = error ?? {};
  const title = code === 'context_length_exceeded' ? 'The conversation is longer than the model can read'
    : TITLES[status] ?? `The daemon answered with status ${status}`;
  return new Problem(title, message, { status, code, param, retryAfterS });
}

async function request(path, { method = 'GET', body, signal } = {}) {
  const headers = {};
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  if (body !== undefined) headers['content-type'] = 'application/json';
  let response;
  try {
    response = await fetch(path, {
      method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body),
      cache: 'no-store', credentials: 'omit', redirect: 'error',
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem('The daemon cannot be reached', `Nothing answers at ${location.origin}. Is it running?`);
  }
  if (response.ok) return response;
  const text = await response.text().catch(() => '');
  let error = null;
  try {
    ({ error } = JSON.parse(text));
  } catch {
    // A proxy in between answers in its own words: the status has to do.
  }
  const after = Number.parseInt(response.headers.get('retry-after') ?? '', 10);
  throw problem(response.status, error, Number.isFinite(after) ? Math.min(after, 3600) : null);
}

const json = async (...args) => (await request(...args)).json();

export const models = async () => (await json('/v1/models')).data;
export const status = () => json('/v1/status');
export const feedback = (body) => json('/v1/feedback', { method: 'POST', body });

/** Lessons, documents or passages in one request. */
const PAGE = 500;

/** Every lesson that the key may see, the oldest first; `message`: what is missing, for its file is damaged. */
export async function lessons() {
  const all = [];
  for (;;) {
    const { data, has_more: more, message } = await json(`/v1/lessons?limit=${PAGE}&after=${encodeURIComponent(all.at(-1)?.id ?? '')}`);
    all.push(...data);
    all.message = message;
    if (!more || !data.length) return all;
  }
}

const lesson = (id) => `/v1/lessons/${encodeURIComponent(id)}`;
export const addLesson = (body) => json('/v1/lessons', { method: 'POST', body });
export const editLesson = (id, body) => json(lesson(id), { method: 'PATCH', body });
export const forgetLesson = (id) => json(lesson(id), { method: 'DELETE' });

/** Every document that the key may see, the oldest first; `message`: what is missing, for its file is damaged. */
export async function documents() {
  const all = [];
  for (;;) {
    const { data, has_more: more, message } = await json(`/v1/documents?limit=${PAGE}&after=${encodeURIComponent(all.at(-1)?.id ?? '')}`);
    all.push(...data);
    all.message = message;
    if (!more || !data.length) return all;
  }
}

const document = (id) => `/v1/documents/${encodeURIComponent(id)}`;
export const removeDocument = (id) => json(document(id), { method: 'DELETE' });

/** Sends a file; `told` is called with the share that is sent. A stream of `fetch` does not tell it. */
export function addDocument(file, told) {
  const form = new FormData();
  form.append('file', file);
  return new Promise((done, failed) => {
    const request = new XMLHttpRequest();
    request.responseType = 'json';
    request.upload.addEventListener('progress', ({ loaded, total }) => told(total ? loaded / total : 0));
    request.upload.addEventListener('load', () => told(1));
    request.addEventListener('load', () => (request.status === 200 ? done(request.response)
      : failed(problem(request.status, request.response?.error, null))));
    request.addEventListener('error', () => failed(new Problem('The daemon cannot be reached',
      'It was not sent whole: the daemon cannot be reached, or refused a file of this size.')));
    request.open('POST', '/v1/documents');
    if (key.get()) request.setRequestHeader('authorization', `Bearer ${key.get()}`);
    request.send(form);
  });
}

/** Passages of a document: the first ones, or those around the one that begins at this byte, which is `at`. */
export async function passages(id, start, around) {
  for (let from = 0; ; from += PAGE) {
    const { data, has_more: more } = await json(`${document(id)}?from=${from}&limit=${PAGE}`);
    if (start === null) return { passages: data, at: null, more };
    const found = data.findIndex((passage) => passage.start === start);
    if (found >= 0) {
      const end = found + around + 1;
      return { passages: data.slice(Math.max(0, found - around), end), at: data[found].passage, more: more || end < data.length };
    }
    if (!more) return { passages: [], at: null, more: false };
  }
}

/** Makes the daemon forget a conversation; tells how many turns it was. */
export const forget = async (conversation) =>
  (await json(`/v1/memory/turns?conversation=${encodeURIComponent(conversation)}`, { method: 'DELETE' })).turns;

/** Is the model there? */
export async function healthy() {
  try {
    return (await fetch('/health', { cache: 'no-store' })).ok;
  } catch {
    return false;
  }
}

/** The chunks of a streamed reply. Throws a `Problem` if the daemon says so or the stream breaks off. */
export async function* stream(body, signal) {
  const response = await request('/v1/chat/completions', {
    method: 'POST', signal, body: { ...body, stream: true, stream_options: { include_usage: true } },
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const lines = (rest + value).split('\n');
      rest = lines.pop();
      for (const line of lines) {
        // Comments keep a silent stream open and say nothing.
        if (!line.startsWith('data:')) continue;
        const data = line.slice(5).trim();
        if (data === '[DONE]') return;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Problem('The reply broke off', chunk.error.message, chunk.error);
        yield chunk;
      }
    }
  } catch (error) {
    if (signal.aborted || error instanceof Problem) throw error;
    throw new Problem('The reply broke off', 'The connection to the daemon was lost.');
  } finally {
    reader.cancel().catch(() => {});
  }
  throw new Problem('The reply broke off', 'The daemon ended the reply before it was complete.');
}
