// Documents: files are added by choosing and by dropping them. An answer that reads them names its sources, which open. What
// is deleted is not found again.

import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';

import { answers, ask, Browser, Daemon, until } from './harness.mjs';
import { NO_PDF, PAPERS, SCAN } from './papers.mjs';

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

const short = async (page) => {
  await page.click('#open-settings');
  await page.fill('#set-max-tokens', '4');
  await page.click('#settings [type="submit"]');
};
const items = (page) => page.locator('#documents-list li');
const said = (page, words) => page.locator('#documents-said', { hasText: words }).waitFor();
const close = (page) => page.click('#documents [data-close]');

test('an answer that reads documents names its sources', async () => {
  const file = join(daemon.state, 'house.md');
  await writeFile(file, '# House\n\nThe lock of the garage is green. <img src=x onerror=alert(1)>\n');
  await daemon.command('documents', '--url', daemon.url, 'add', file);
  const page = await browser.page();
  await short(page);
  await ask(page, 'Which lock has the garage?');
  assert.equal(await page.locator('.passages').count(), 0);
  await page.click('#open-settings');
  await page.check('#set-documents');
  await page.click('#settings [type="submit"]');
  const asked = page.waitForRequest('**/v1/chat/completions');
  await ask(page, 'Which lock has the garage?');
  assert.equal((await asked).postDataJSON().chimere.documents, true);
  const sources = answers(page).last().locator('.passages');
  await sources.getByText('Sources: a passage of a document').click();
  assert.match(await sources.locator('li').textContent(), /\[1\] House, line 1.*green\. <img src=x/s);
  await ask(page, 'Zebras?');
  await answers(page).last().getByText('Nothing was found.').waitFor();
});

test('a file of each kind is added, read from, opened, deleted, and not found again', async () => {
  const page = await browser.page();
  await short(page);
  await page.click('#open-documents');
  await page.setInputFiles('#documents-files', PAPERS.slice(1).map(({ file }) => file));
  // What is dropped on the page is added as well.
  await said(page, 'valve.rs is added: 1 passage.');
  await close(page);
  const [first] = PAPERS;
  const dropped = await page.evaluateHandle(([name, type, bytes]) => {
    const data = new DataTransfer();
    data.items.add(new File([new Uint8Array(bytes)], name, { type }));
    return data;
  }, [first.file.name, first.file.mimeType, [...first.file.buffer]]);
  await page.dispatchEvent('#log', 'dragover', { dataTransfer: dropped });
  assert.ok(await page.evaluate(() => document.body.classList.contains('dropping')));
  await page.dispatchEvent('#log', 'drop', { dataTransfer: dropped });
  await said(page, 'boiler.pdf is added: 2 passages.');
  assert.ok(await page.isHidden('#documents-progress'));
  await page.check('#documents-use');
  await close(page);
  for (const { file, question, says, place } of PAPERS) {
    await ask(page, question);
    const answer = answers(page).nth(await answers(page).count() - 1);
    const source = answer.locator('.passages');
    await source.locator('summary').click();
    const item = source.locator('li').first();
    const words = await item.textContent();
    assert.ok(words.includes(says) && words.includes(place), `${file.name}: ${words}`);
    await item.getByText('Show in the document').click();
    await page.locator('#documents-text li.used', { hasText: says }).waitFor();
    assert.match(await page.textContent('#documents-text li.used .faint'), new RegExp(`^${place}`));
    await page.click('#documents-back');
    const listed = items(page).filter({ hasText: file.name });
    await listed.getByText('Delete').click();
    await said(page, `${file.name} is deleted`);
    await until('it is gone from the list', async () => await listed.count() === 0);
    await close(page);
    await ask(page, question);
    const again = answers(page).last();
    const sources = await again.locator('.passages, .faint', { hasText: /Sources|Nothing was found/ }).first().textContent();
    assert.ok(!sources.includes(says), sources);
    // The passage is gone for who still has the answer on the screen.
    await item.getByText('Show in the document').click();
    await said(page, 'This document is no longer here.');
    await close(page);
  }
  await ask(page, PAPERS[0].question);
  await answers(page).last().getByText('Nothing was found.').waitFor();
});

test('a file that cannot be read says why, and the others are added', async () => {
  const page = await browser.page();
  await page.click('#open-documents');
  const picture = { name: 'photo.png', mimeType: 'image/png', buffer: Buffer.from([137, 80]) };
  const note = { name: 'note.txt', mimeType: 'text/plain', buffer: Buffer.from('The <b>gutter</b> is full.') };
  await page.setInputFiles('#documents-files', [SCAN, NO_PDF, picture, note]);
  await said(page, 'note.txt is added: 1 passage.');
  const words = await page.textContent('#documents-said');
  assert.match(words, /scan\.pdf: the file has no text: it may be a scan/);
  assert.match(words, /broken\.pdf: the file cannot be read as PDF/);
  assert.match(words, /photo\.png: `.png` is no kind of file that is read here|photo\.png: `image\/png`/);
  await items(page).filter({ hasText: 'note.txt' }).getByText('Show').click();
  await page.locator('#documents-text', { hasText: 'The <b>gutter</b> is full.' }).waitFor();
  // Where the daemon cannot be reached, that is said.
  await page.route('**/v1/documents', (route) => route.abort());
  await page.click('#documents-back');
  await page.setInputFiles('#documents-files', [note]);
  await said(page, 'note.txt: It was not sent whole');
  await page.unroute('**/v1/documents');
});

test('no request left the origin and the browser had nothing to complain about', () => browser.assertQuiet());
