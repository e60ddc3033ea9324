// Documents: an answer that may read them names its sources, which fold out with their words.

import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';

import { answers, ask, Browser, Daemon } from './harness.mjs';

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

test('an answer that reads documents names its sources', async () => {
  const file = join(daemon.state, 'house.md');
  await writeFile(file, '# House\n\nThe code of the boiler is 4711. <img src=x onerror=alert(1)>\n');
  await daemon.command('documents', '--url', daemon.url, 'add', file);
  const page = await browser.page();
  await ask(page, 'What is the code of the boiler?');
  assert.equal(await page.locator('.passages').count(), 0);
  await page.click('#open-settings');
  await page.fill('#set-max-tokens', '4');
  await page.check('#set-documents');
  await page.click('#settings [type="submit"]');
  const asked = page.waitForRequest('**/v1/chat/completions');
  await ask(page, 'What is the code of the boiler?');
  assert.equal((await asked).postDataJSON().chimere.documents, true);
  const sources = answers(page).last().locator('.passages');
  await sources.getByText('Sources: a passage of a document').click();
  assert.match(await sources.locator('li').textContent(), /\[1\] House, line 1.*4711\. <img src=x/s);
  await ask(page, 'Zebras?');
  await answers(page).last().getByText('Nothing was found.').waitFor();
});
