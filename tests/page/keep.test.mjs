// What the browser keeps: conversations, their limits, tabs, no storage at all.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { after, before, test } from 'node:test';

import { answers, ask, bodyOf, Browser, Daemon, halfAStory, idle, send, until } from './harness.mjs';

let daemon;
let browser;

before(async () => {
  daemon = await Daemon.start();
  browser = await Browser.start(daemon);
});
after(async () => {
  await browser?.stop();
  await daemon?.stop();
});

const entries = (page) => page.locator('#list .entry-title').allTextContents();

test('conversations outlive a reload, can be named, saved and deleted', async () => {
  const page = await browser.page();
  await ask(page, 'What is 17 + 25?');
  await page.fill('#title', 'Sums');
  await page.press('#title', 'Enter');
  await page.click('#new');
  await ask(page, 'What is a cat?');
  const said = await bodyOf(page).textContent();
  await page.reload();
  assert.deepEqual(await entries(page), ['What is a cat?', 'Sums']);
  await page.locator('.entry').first().click();
  assert.equal(await bodyOf(page).textContent(), said);
  await ask(page, 'And a dog?');
  assert.equal(await answers(page).count(), 2);

  const file = async (click) => {
    const [download] = await Promise.all([page.waitForEvent('download'), click()]);
    return readFile(await download.path(), 'utf8');
  };
  const text = await file(() => page.click('#export'));
  assert.ok(text.startsWith('# What is a cat?\n\n## You\n') && text.includes(said.trim().slice(0, 10)), text);
  await page.click('#open-settings');
  const all = JSON.parse(await file(() => page.click('#export-all')));
  assert.deepEqual(all.conversations.map(({ title }) => title), ['What is a cat?', 'Sums']);
  await page.keyboard.press('Escape');

  const id = all.conversations[0].id;
  const kept = async () => (await daemon.turns()).filter((turn) => turn.conversation === id).length;
  assert.equal(await kept(), 2);
  await page.click('#delete');
  await page.check('#confirm-forget');
  await page.click('#confirm [type="submit"]');
  await until('it is gone', async () => (await entries(page)).join() === 'Sums');
  assert.equal(await kept(), 0, 'the daemon forgot it');
  assert.equal(await page.isVisible('.welcome'), true);
});

test('another tab sees the list, a reply goes on while another conversation is open', async () => {
  const page = await browser.page();
  await daemon.pause();
  await send(page, 'What is 17 + 25?');
  await page.waitForSelector('#stop', { state: 'visible' });
  await page.click('#new');
  assert.equal(await page.isVisible('#send'), true);
  const second = await page.context().newPage();
  browser.watch(second);
  await second.goto(daemon.url);
  assert.deepEqual(await entries(second), ['What is 17 + 25?']);
  await daemon.resume();
  await until('the reply is whole', async () => await page.locator('.dot.busy').count() === 0);
  await page.locator('.entry').first().click();
  assert.match(await bodyOf(page).textContent(), /42/);
});

test('the oldest conversations make room, and the user is told', async () => {
  const page = await browser.page();
  await page.evaluate(() => {
    for (let n = 0; n < 200; n += 1) {
      const messages = [{ role: 'user', content: `question ${n}` }];
      const one = { v: 1, id: `old-${n}`, title: '', titled: false, created: n, updated: n, messages };
      localStorage.setItem(`chimere.chat.old-${n}`, JSON.stringify(one));
    }
    localStorage.setItem('chimere.chat.broken', '{"v":9');
  });
  await ask(page, 'What is 17 + 25?');
  assert.match(await page.textContent('#notice'), /the oldest went: question 0/);
  const titles = await entries(page);
  assert.deepEqual([titles.length, titles[0], titles.at(-1)], [200, 'What is 17 + 25?', 'question 1']);
  assert.equal(await page.evaluate(() => localStorage.getItem('chimere.chat.broken')), '{"v":9', 'nothing is lost');
  // Nearly full by size: the browser's own limit is met by making room, not by losing the reply.
  await page.evaluate(() => {
    localStorage.clear();
    for (let n = 0; n < 4; n += 1) {
      const messages = [{ role: 'user', content: 'x'.repeat(999_000) }];
      const one = { v: 1, id: `big-${n}`, title: `big ${n}`, titled: true, created: n, updated: n, messages };
      localStorage.setItem(`chimere.chat.big-${n}`, JSON.stringify(one));
    }
  });
  await page.reload();
  await ask(page, `What is 17 + 25?${' '.repeat(5000)}`);
  assert.deepEqual((await entries(page)).slice(-1), ['big 1']);
});

test('without storage the page works as long as it is open', async () => {
  const closed = () => {
    for (const name of ['localStorage', 'sessionStorage']) {
      Object.defineProperty(window, name, { get() { throw new DOMException('closed', 'SecurityError'); } });
    }
  };
  const page = await browser.page({ script: closed });
  assert.match(await page.textContent('#notice'), /keeps nothing/);
  await ask(page, 'What is 17 + 25?');
  await page.click('#new');
  await page.locator('.entry').first().click();
  assert.match(await bodyOf(page).textContent(), /42/);
});

test('a reply that a reload cut off is kept as far as it was', async () => {
  const page = await browser.page();
  const half = await halfAStory(daemon, page);
  // Kept every two seconds, when something more of it comes.
  await until('it was kept', async () => {
    await daemon.resume();
    await daemon.pause();
    return page.evaluate(() => Object.values(localStorage).some((text) => JSON.parse(text).messages?.[1]?.content));
  });
  await page.reload();
  await daemon.resume();
  await page.locator('.entry').first().click();
  assert.ok((await bodyOf(page).textContent()).startsWith(half.trim().slice(0, 3)));
  await page.getByLabel('Ask again').click();
  await idle(page);
  assert.equal(await answers(page).count(), 1);
});

test('a further model is chosen beside the composer, answers, and stays chosen', async () => {
  const page = await browser.page();
  const offered = () => page.locator('#which option').allTextContents();
  assert.deepEqual(await offered(), ['Model: nano', 'Model: small']);
  const state = async () => (await (await fetch(`${daemon.url}/v1/models/small`)).json()).x_chimere.state;
  assert.equal(await state(), 'unloaded');
  await page.selectOption('#which', 'small');
  await until('its name is shown', async () => await page.textContent('#model-name') === 'small');
  await ask(page, 'What is 17 + 25?');
  assert.equal(await state(), 'ready');
  await page.reload();
  await until('it stays', async () => await page.textContent('#model-name') === 'small');
  assert.equal(await page.inputValue('#which'), 'small');
  await page.selectOption('#which', '');
  await until('and goes', async () => await page.textContent('#model-name') === 'nano');
});

test('no request left the origin and the browser had nothing to complain about', () => browser.assertQuiet());
