// One reply: what is sent, and how the chunks that come back grow a message.
//
// A message is {role: 'user', content}, {role: 'tool', tool_call_id, content}, or
// {role: 'assistant', content, reasoning, calls: [{id, name, arguments}], meta, used?, problem?, stopped?, vote?,
// correction?, goesOn?}. `used` are calls that the daemon ran: [{name, arguments, result?, outcome?, took_ms?}]. `goesOn` is
// the correction that later requests say in the answer's place, empty where they say the answer.

import { Problem, stream } from './api.js';

/** Tools of the daemon's own that the settings offer. */
const BUILT_IN = ['calculate', 'date_time'];

/** An answer that has nothing yet. */
export const emptyReply = () => ({ role: 'assistant', content: '', reasoning: '', calls: [], meta: {} });

/** The request for the reply that follows `messages`. */
export function requestFor(conversation, messages, settings) {
  const { instruction, temperature, maxTokens, tools, builtIn, model, route, tier, thought, learn, lessons, documents, web } = settings;
  const body = { messages: messages.flatMap(wire), chimere: { conversation: conversation.id, steps: 'events' } };
  if (instruction.trim()) body.messages.unshift({ role: 'system', content: instruction });
  if (temperature !== null) body.temperature = temperature;
  if (maxTokens !== null) body.max_tokens = maxTokens;
  if (tools.length) body.tools = tools;
  if (model) body.model = model;
  if (thought) body.reasoning_effort = thought;
  if (route) body.chimere.route = route;
  if (tier) body.chimere.tier = tier;
  if (builtIn) body.chimere.tools = BUILT_IN;
  if (!learn) body.chimere.consent = false;
  if (!lessons) body.chimere.lessons = 'none';
  if (documents) body.chimere.documents = true;
  if (web) body.chimere.web = true;
  return body;
}

/** The words of a correction, behind a thought that it begins with. */
const words = (text) => (text.trimStart().startsWith('<think>') ? text.split('</think>').pop() : text).trim();

/** A message as the daemon reads it; none for an answer that never came to anything. */
function wire(message) {
  const { role, calls = [], tool_call_id } = message;
  // A conversation goes on with what an answer should have been. What one request went on with, later ones do too: the
  // daemon finds their turns by it.
  if (role === 'assistant') {
    message.goesOn ??= message.correction && !calls.length ? words(message.correction) : '';
  }
  const right = message.goesOn;
  const content = right || message.content;
  const reasoning = right ? '' : message.reasoning;
  if (role === 'tool') return [{ role, content, tool_call_id }];
  if (role === 'user') return [{ role, content }];
  if (!content && !calls.length) return [];
  const sent = { role, content };
  if (reasoning) sent.reasoning_content = reasoning;
  if (calls.length) {
    sent.tool_calls = calls.map((call) => ({
      id: call.id, type: 'function', function: { name: call.name, arguments: call.arguments || '{}' },
    }));
  }
  return [sent];
}

/** Streams the reply into `message`; `changed` is called after every chunk. Never throws: what went wrong is in it. */
export async function run(message, body, signal, changed) {
  const clock = { sent: performance.now(), first: null, pieces: 0 };
  try {
    for await (const chunk of stream(body, signal)) {
      grow(message, chunk, clock);
      changed();
    }
  } catch (error) {
    if (signal.aborted) message.stopped = true;
    else if (error instanceof Problem) message.problem = { ...error.plain(), until: until(error) };
    else message.problem = { title: 'The page failed', message: String(error), status: 0, code: null, until: null };
    // A call without its end cannot be answered or sent back.
    message.calls = [];
  }
}

/** When the daemon said it may be asked again, on the wall clock, ms. */
function until(error) {
  return error.retryAfterS === null ? null : Date.now() + 1000 * error.retryAfterS;
}

function grow(message, chunk, clock) {
  const { meta } = message;
  meta.model = chunk.model ?? meta.model;
  // The turn's id is the reply's with another prefix; a reply that is stopped has no other source of it.
  if (chunk.id) meta.turn = chunk.id.replace(/^chatcmpl-/, 'turn-');
  for (const { index, delta = {}, finish_reason: finish } of chunk.choices ?? []) {
    if (index !== 0) continue;
    message.content += delta.content ?? '';
    message.reasoning += delta.reasoning_content ?? '';
    for (const call of delta.tool_calls ?? []) growCall(message.calls, call);
    if (finish) meta.finish = finish;
    if (delta.content || delta.reasoning_content || delta.tool_calls) tick(meta, clock);
  }
  if (chunk.usage) growUsage(meta, chunk.usage);
  if (chunk.x_chimere?.step) growUsed(message, chunk.x_chimere.step);
  else if (chunk.x_chimere) growPlan(meta, chunk.x_chimere);
}

/** A rate to show while the reply grows: pieces are tokens, but for a few. */
function tick(meta, clock) {
  const now = performance.now();
  clock.first ??= now;
  clock.pieces += 1;
  meta.firstMs ??= now - clock.sent;
  meta.tokens = clock.pieces;
  meta.rate = now - clock.first > 200 ? (1000 * (clock.pieces - 1)) / (now - clock.first) : null;
}

function growCall(calls, { index, id, function: { name, arguments: piece } = {} }) {
  calls[index] ??= { id: '', name: '', arguments: '' };
  const call = calls[index];
  if (id) call.id = id;
  if (name) call.name = name;
  call.arguments += piece ?? '';
}

/** A call that the daemon runs, and then what came of it. */
function growUsed(message, step) {
  const { state, name, arguments: given, result, outcome, took_ms } = step;
  const used = message.used ??= [];
  if (state === 'calling') used.push({ name, arguments: given });
  const open = state === 'called' && used.find((call) => call.outcome === undefined && call.name === name);
  if (open) Object.assign(open, { result, outcome, took_ms });
}

function growUsage(meta, usage) {
  meta.tokens = usage.completion_tokens;
  meta.thought = usage.completion_tokens_details?.reasoning_tokens ?? 0;
  meta.context = usage.total_tokens;
  meta.cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
}

/** The engine's own clock replaces ours at the end. */
function growPlan(meta, plan) {
  meta.turn = plan.turn ?? meta.turn;
  meta.route = plan.route;
  meta.because = plan.because;
  meta.tier = plan.tier;
  meta.generation = plan.adapter_revision;
  meta.kept = plan.kept;
  meta.lessons = plan.lessons;
  meta.sources = plan.sources;
  const decode = plan.timings?.decode_ms;
  meta.rate = decode > 0 && meta.tokens > 1 ? (1000 * (meta.tokens - 1)) / decode : null;
}
