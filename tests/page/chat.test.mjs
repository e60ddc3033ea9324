// Talking: streams, stop, ask again, edit, tools, what is said about a reply, and failures on the way.

import assert from 'node:assert/strict';
import { after, afterEach, before, test } from 'node:test';

import { answers, ask, bodyOf, Browser, Daemon, halfAStory, idle, send, until } from './harness.mjs';

let daemon;
let browser;

before(async () => {
  daemon = await Daemon.start();
  browser = await Browser.start(daemon);
});
// A test that failed halfway must not leave the engine stopped for the next; with a key in force nothing was stopped.
afterEach(() => daemon.resume().catch(() => {}));
after(async () => {
  await browser?.stop();
  await daemon?.stop();
});

test('an answer appears while it is written, and says where it came from', async () => {
  const page = await browser.page();
  const half = await halfAStory(daemon, page);
  assert.equal(await answers(page).getAttribute('aria-busy'), 'true');
  await daemon.resume();
  await idle(page);
  const whole = await bodyOf(page).textContent();
  assert.ok(whole.length > half.length && whole.startsWith(half.trim().slice(0, 3)), `${half} → ${whole}`);
  const meta = await page.locator('.meta').textContent();
  for (const part of [/nano/, /route default/, /tier quality/, /\d+ tokens/, /[\d.]+ tok\/s/]) assert.match(meta, part);
  assert.match(await page.textContent('#context'), /of 4,096 tokens used/);
  assert.ok((await page.textContent('#announce')).length > 10, 'a screen reader is told');
});

test('stop keeps what was written and frees the engine', async () => {
  const page = await browser.page();
  const half = await halfAStory(daemon, page);
  await page.click('#stop');
  await idle(page);
  await daemon.resume();
  await until('the reply ended in the daemon', async () => (await daemon.status()).replies.running === 0);
  const kept = await bodyOf(page).textContent();
  assert.ok(kept.startsWith(half.trim().slice(0, 3)), kept);
  assert.match(await page.locator('.meta').textContent(), /stopped/);
  await ask(page, 'What is 17 + 25?');
  assert.match(await bodyOf(page).textContent(), /42/);
  // By the keyboard as well.
  await halfAStory(daemon, page);
  await page.keyboard.press('Escape');
  await idle(page);
});

test('a thought is folded', async () => {
  const page = await browser.page();
  await page.selectOption('#thought', 'medium');
  await ask(page, 'What is 17 + 25?');
  const thought = page.locator('.thought').last();
  await thought.waitFor();
  assert.equal(await thought.evaluate((node) => node.open), false);
  assert.equal(await page.isVisible('.thought-text'), false);
  await thought.locator('summary').click();
  assert.ok((await page.locator('.thought-text').innerText()).length > 5);
});

test('asking again replaces the answer, editing replaces the question', async () => {
  const page = await browser.page();
  const bodies = [];
  page.on('request', (request) => { if (request.method() === 'POST') bodies.push(request.postDataJSON()); });
  await ask(page, 'What is 17 + 25?');
  await ask(page, 'And what is 5 + 5?');
  await page.locator('.message.answer').last().getByLabel('Ask again').click();
  await until('the request is out', () => bodies.length === 3);
  await idle(page);
  assert.equal(await answers(page).count(), 2);
  assert.deepEqual(bodies[2].messages, bodies[1].messages);
  await page.locator('.message.user').first().hover();
  await page.locator('.message.user').first().getByLabel('Edit this message').click();
  await page.fill('.editor textarea', 'What is 30 + 3?');
  await page.click('.editor [type="submit"]');
  await until('the edited request is out', () => bodies.length === 4);
  await idle(page);
  assert.deepEqual(bodies[3].messages, [{ role: 'user', content: 'What is 30 + 3?' }]);
  assert.equal(await answers(page).count(), 1);
  const turns = (await daemon.turns()).filter((turn) => turn.conversation === bodies[0].chimere.conversation);
  assert.equal(turns.length, 4);
});

test('a vote and a correction arrive in the memory', async () => {
  const page = await browser.page();
  await ask(page, 'What is 6 + 6?');
  await page.getByLabel('Good answer').click();
  await page.waitForSelector('[data-vote="up"][aria-pressed="true"]');
  await page.getByText('Correct it').click();
  await page.fill('.editor textarea', 'It is twelve.');
  await page.getByText('Send correction').click();
  await page.getByText('Corrected', { exact: true }).waitFor();
  const id = await page.evaluate(() => JSON.parse(Object.values(localStorage).find((v) => v.includes('6 + 6'))).id);
  const [turn] = (await daemon.turns()).filter((found) => found.conversation === id);
  const said = JSON.stringify(turn.feedback);
  assert.match(said, /"up"/);
  assert.match(said, /It is twelve\./);
  // The conversation goes on with the right answer.
  await ask(page, 'And 7 + 7?');
  const next = (await daemon.turns()).filter((found) => found.conversation === id).at(-1);
  assert.equal(next.messages.find((message) => message.role === 'assistant').content, 'It is twelve.');
  // An answer that a later question went on with stays as it was, so that forgetting finds every turn of the conversation.
  const answers = async () => {
    const last = (await daemon.turns()).filter((found) => found.conversation === id).at(-1);
    return last.messages.filter((message) => message.role === 'assistant').map((message) => message.content);
  };
  await ask(page, 'And 8 + 8?');
  const before = await answers();
  await page.getByText('Correct it').first().click();
  await page.fill('.editor textarea', 'It is fourteen.');
  await page.getByText('Send correction').click();
  await page.getByText('Corrected', { exact: true }).nth(1).waitFor();
  await ask(page, 'And 9 + 9?');
  assert.deepEqual((await answers()).slice(0, 2), before);
});

test('a tool is called, its result given, and the answer follows', async () => {
  const page = await browser.page();
  await page.click('#open-settings');
  await page.fill('#set-tools', 'not json');
  await page.click('#settings [type="submit"]');
  assert.match(await page.textContent('#settings-error'), /not valid JSON/);
  const parameters = { type: 'object', properties: { city: { type: 'string', description: 'the city' } }, required: ['city'] };
  const tool = { type: 'function', function: { name: 'get_weather', description: 'Current weather in a city', parameters } };
  await page.fill('#set-tools', JSON.stringify([tool]));
  await page.fill('#set-temperature', '0');
  await page.click('#settings [type="submit"]');
  await ask(page, 'What is the weather in Paris?');
  assert.match(await page.textContent('.calls summary'), /get_weather/);
  assert.match(await page.textContent('.calls pre'), /"city": "Paris"/);
  await page.fill('.results textarea', '{"temperature": 21, "sky": "clear"}');
  await page.click('.results [type="submit"]');
  await until('the answer is there', async () => await answers(page).count() === 2 && await page.isVisible('#send'));
  assert.ok((await bodyOf(page).textContent()).length > 0, 'an answer after the result');
  assert.equal(await page.locator('.results').count(), 0);
});

test('a call that the daemon ran is a folded line with arguments, result and time', async () => {
  const page = await browser.page();
  await page.click('#open-settings');
  await page.check('#set-built-in');
  await page.click('#settings [type="submit"]');
  const given = { expression: '17% of 230' };
  const called = { state: 'called', name: 'calculate', arguments: given, outcome: 'done', result: '<b>39.1</b>', bytes: 11, took_ms: 12 };
  const chunk = (delta, more) => `data: ${JSON.stringify({ id: 'chatcmpl-1', choices: [{ index: 0, delta, finish_reason: null }], ...more })}\n\n`;
  const step = (step) => chunk({}, { x_chimere: { step } });
  let asked = null;
  await page.route('**/v1/chat/completions', (route) => {
    asked = route.request().postDataJSON();
    route.fulfill({ contentType: 'text/event-stream', body: [
      step({ state: 'began', kind: 'tools', name: 'answer' }), step({ state: 'calling', name: 'calculate', arguments: given }),
      step(called), chunk({ content: 'It is 39.1.' }), 'data: [DONE]\n\n'].join('') });
  });
  await ask(page, 'What is 17% of 230?');
  assert.deepEqual(asked.chimere.tools, ['calculate', 'date_time']);
  assert.equal(asked.chimere.steps, 'events');
  assert.equal(await page.textContent('.used summary'), 'Used calculate, 12 ms');
  assert.match(await page.locator('.used pre').first().textContent(), /17% of 230/);
  assert.equal(await page.locator('.used pre').last().textContent(), '<b>39.1</b>');
  assert.equal(await page.getAttribute('.used details', 'open'), null, 'it is folded');
  assert.equal((await bodyOf(page).textContent()).trim(), 'It is 39.1.');
});

test('an engine killed in the middle of a reply is an error, and the next message works', async () => {
  const page = await browser.page();
  const half = await halfAStory(daemon, page);
  await daemon.killEngine();
  await page.waitForSelector('.problem:visible');
  assert.match(await page.textContent('.problem'), /The reply broke off.*engine/s);
  assert.ok((await bodyOf(page).textContent()).startsWith(half.trim().slice(0, 3)), 'what came before it is kept');
  await daemon.resume();
  await page.waitForSelector('.model[data-state="ready"]');
  await ask(page, 'What is 17 + 25?');
  assert.match(await bodyOf(page).textContent(), /42/);
  // The failed answer can be asked for again, which drops what came after it.
  await page.locator('.problem button').last().click();
  await idle(page);
  assert.equal(await answers(page).count(), 1);
  assert.equal(await page.isVisible('.problem'), false);
});

test('a refusal says when to come back, and coming back works', async () => {
  const page = await browser.page();
  await daemon.pause();
  const abort = new AbortController();
  const body = JSON.stringify({ stream: true, messages: [{ role: 'user', content: 'Tell me a story.' }] });
  const others = [1, 2].map(() => fetch(`${daemon.url}/v1/chat/completions`,
    { method: 'POST', body, headers: { 'content-type': 'application/json' }, signal: abort.signal }).catch(() => null));
  await until('both are in', async () => (await daemon.status()).replies.running === 2);
  await send(page, 'What is 17 + 25?');
  await page.waitForSelector('.problem:visible');
  assert.match(await page.textContent('.problem'), /Too many replies are under way/);
  const retry = page.locator('.problem button');
  assert.match(await retry.textContent(), /Try again in \d+ s/);
  assert.equal(await retry.isDisabled(), true);
  abort.abort();
  await Promise.all(others);
  await daemon.resume();
  await until('the others are gone', async () => (await daemon.status()).replies.running === 0);
  await until('the wait is over', () => retry.isEnabled());
  await retry.click();
  await idle(page);
  assert.match(await bodyOf(page).textContent(), /42/);
});

test('a daemon that is gone is named', async () => {
  const page = await browser.page();
  await page.route('**/v1/chat/completions', (route) => route.abort('connectionrefused'));
  await ask(page, 'Hello');
  assert.match(await page.textContent('.problem'), /cannot be reached.*Is it running/s);
  await page.unroute('**/v1/chat/completions');
  await page.locator('.problem button').click();
  await idle(page);
  assert.equal(await page.isVisible('.problem'), false);
});

test('once there is a key the page asks for it and keeps it with the tab', async () => {
  const key = await daemon.addKey('reader');
  const page = await browser.page({ ready: false });
  await page.waitForSelector('.model[data-state="away"]');
  await ask(page, 'What is 17 + 25?');
  await page.waitForSelector('#settings[open]');
  assert.match(await page.textContent('#settings-error'), /asks for a key/);
  await page.fill('#set-key', key);
  await page.click('#settings [type="submit"]');
  await page.waitForSelector('.model[data-state="ready"]');
  await page.locator('.problem button').last().click();
  await idle(page);
  assert.match(await bodyOf(page).textContent(), /42/);
  await page.reload();
  await page.waitForSelector('.model[data-state="ready"]');
  assert.deepEqual(await page.evaluate((text) => [Object.values(localStorage).some((v) => v.includes(text)),
    Object.values(sessionStorage).some((v) => v.includes(text))], key), [false, true]);
});

test('no request left the origin and the browser had nothing to complain about', () => browser.assertQuiet());
