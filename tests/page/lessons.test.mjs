// Lessons: a correction makes one, the next answer is shown it and says so, and it is seen, changed and forgotten here.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { answers, ask, Browser, Daemon, until } from './harness.mjs';

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

/** Lessons as the daemon keeps them: wordings, answer, state and sharing. */
const kept = async () => JSON.parse(await daemon.command('lessons', '--url', daemon.url, 'list', '--json'))
  .map(({ questions, answer, state, sharing }) => [questions.join(' / '), answer, state, sharing].join(' | '));

const short = async (page) => {
  await page.click('#open-settings');
  await page.fill('#set-max-tokens', '4');
  await page.click('#settings [type="submit"]');
};
const items = (page) => page.locator('#lessons-list li');
const said = (page, words) => page.locator('#lessons-said', { hasText: words }).waitFor();

test('a correction is kept as a lesson, which the next answer names as its source', async () => {
  const page = await browser.page();
  await short(page);
  await ask(page, 'Which number opens the door of the shed?');
  assert.equal(await page.getByText('Source: a lesson').count(), 0);
  await page.getByText('Correct it').click();
  await page.fill('.editor textarea', '4711');
  await page.getByText('Send correction').click();
  await page.locator('.taught', { hasText: 'Kept as a lesson' }).waitFor();
  await ask(page, 'What do I press to open the shed door?');
  await answers(page).last().getByText('Source: a lesson').click();
  await page.waitForSelector('#lessons-list li.used');
  assert.match(await items(page).first().textContent(), /opens the door of the shed.*4711.*from a correction · private/);
  await page.click('#lessons [data-close]');
  // Another correction of it takes its place, and says so; the lesson is forgotten where the answer stands.
  const other = answers(page).last();
  await other.getByText('Correct it').click();
  await other.locator('.editor textarea').fill('4712');
  await other.getByText('Send correction').click();
  await other.locator('.taught', { hasText: 'Kept as a lesson' }).waitFor();
  await other.getByText('Forget it').click();
  await other.locator('.taught', { hasText: 'Forgotten.' }).waitFor();
  assert.ok(!(await kept()).some((lesson) => lesson.includes('4712')));
  // Settings can do without them.
  await page.click('#open-settings');
  await page.uncheck('#set-lessons');
  await page.click('#settings [type="submit"]');
  const asked = page.waitForRequest('**/v1/chat/completions');
  await ask(page, 'What do I press to open the shed door?');
  assert.equal((await asked).postDataJSON().chimere.lessons, 'none');
  assert.equal(await answers(page).last().getByText('Source: a lesson').count(), 0);
});

test('lessons are written, changed, shared, forgotten and brought back by hand', async () => {
  const page = await browser.page();
  const before = (await kept()).length;
  await page.click('#open-lessons');
  await page.click('#lesson-save');
  await said(page, 'A lesson has a question and its answer');
  await page.locator('#lesson-questions textarea').first().fill('Who waters the fern?');
  await page.click('#lesson-wording');
  await page.locator('#lesson-questions textarea').nth(1).fill('Whose job is the <b>fern</b>?');
  await page.fill('#lesson-answer', 'Orvane.');
  await page.click('#lesson-save');
  await said(page, 'Taught');
  const item = items(page).filter({ hasText: 'fern' });
  await until('the list is drawn', async () => await items(page).count() === before + 1);
  assert.equal((await kept()).at(-1), 'Who waters the fern? / Whose job is the <b>fern</b>? | Orvane. | new | private');
  await item.getByText('Edit').click();
  await page.fill('#lesson-answer', 'Quillon.');
  await page.getByText('Save the lesson').click();
  await said(page, 'Saved');
  await item.filter({ hasText: 'Quillon.' }).waitFor();
  await item.getByText('Share with everybody').click();
  await said(page, 'Everybody');
  await item.filter({ hasText: 'shown to everybody' }).waitFor();
  await item.getByText('Make private').click();
  await said(page, 'private again');
  await item.getByText('Forget').click();
  await said(page, 'Forgotten');
  await until('it is gone from the list', async () => await item.count() === 0);
  assert.equal((await kept()).length, before);
  await page.locator('#lessons-said').getByText('Undo').click();
  await item.filter({ hasText: 'Quillon.' }).waitFor();
  assert.match((await kept()).at(-1), /Quillon\. \| new \| private/);
  // Who may not share has it back for themselves, and is told so.
  await item.getByText('Share with everybody').click();
  await item.filter({ hasText: 'shown to everybody' }).waitFor();
  await item.getByText('Forget').click();
  await said(page, 'Forgotten');
  await page.route('**/v1/lessons', (route) => (route.request().postDataJSON()?.sharing !== 'shared' ? route.continue()
    : route.fulfill({ status: 400, contentType: 'application/json',
      body: JSON.stringify({ error: { message: 'only the owner shares a lesson', param: 'sharing' } }) })));
  await page.locator('#lessons-said').getByText('Undo').click();
  await said(page, 'It is taught again, and private');
  assert.match((await kept()).at(-1), /Quillon\. \| new \| private/);
  await page.unroute('**/v1/lessons');
  // What the daemon refuses is said where the person is.
  await page.route('**/v1/lessons', (route) => route.fulfill({ status: 409, contentType: 'application/json',
    body: JSON.stringify({ error: { message: 'all keys together have taught as much as is kept' } }) }));
  await page.locator('#lesson-questions textarea').first().fill('Why?');
  await page.fill('#lesson-answer', 'So.');
  await page.click('#lesson-save');
  await said(page, 'as much as is kept');
  assert.equal(await page.inputValue('#lesson-answer'), 'So.');
});

test('no request left the origin and the browser had nothing to complain about', () => browser.assertQuiet());
