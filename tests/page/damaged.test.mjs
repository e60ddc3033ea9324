// Files of the state folder that are damaged: the page says what is missing, and does not call it none.

import assert from 'node:assert/strict';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';

import { Browser, Daemon } from './harness.mjs';

let daemon;
let browser;

before(async () => {
  daemon = await Daemon.start(async (state) => {
    await writeFile(join(state, 'lessons.txt'), 'chimere lessons 1 2\nffffffff {}\nffffffff {}\n');
    await mkdir(join(state, 'documents'));
    await writeFile(join(state, 'documents/collections.json'), '{"format": 1, "collections": []}');
    await writeFile(join(state, 'documents/document-torn.document'), 'torn');
  });
  browser = await Browser.start(daemon);
});
after(async () => {
  await browser?.stop();
  await daemon?.stop();
});

test('damaged lessons and documents are said to be', async () => {
  const page = await browser.page();
  await page.click('#open-documents');
  await page.locator('#documents-said', { hasText: '1 document is damaged and not in use: document-torn' }).waitFor();
  await page.click('#documents [data-close]');
  await page.click('#open-lessons');
  await page.locator('#lessons-said', { hasText: '2 of 2 lessons are lost' }).waitFor();
  assert.equal(await page.locator('#lessons-list li').count(), 0);
});
