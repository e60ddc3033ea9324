// Who can use it: keyboard alone, assistive technology (axe), small screens, light and dark.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { after, before, test } from 'node:test';

import { ask, Browser, Daemon, idle, pretend, until } from './harness.mjs';

const AXE = await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

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

test('everything works from the keyboard, and the focus is always seen', async () => {
  const page = await browser.page();
  const { keyboard } = page;
  assert.equal(await page.evaluate(() => document.activeElement.id), 'input', 'ready to type');
  await keyboard.type('What is 17 + 25?');
  await keyboard.press('Shift+Enter');
  await keyboard.type('Please.');
  assert.equal(await page.inputValue('#input'), 'What is 17 + 25?\nPlease.');
  await keyboard.press('Enter');
  await idle(page);
  await keyboard.press('Alt+n');
  await keyboard.type('What is a cat?');
  await keyboard.press('Enter');
  await idle(page);
  await keyboard.press('Alt+ArrowDown');
  assert.match(await page.inputValue('#title'), /17 \+ 25/);
  await keyboard.press('Alt+ArrowUp');
  assert.match(await page.inputValue('#title'), /cat/);
  await keyboard.press('Alt+e');
  await until('the editor has the focus', () => page.evaluate(() => document.activeElement.closest('.editor') !== null));
  await keyboard.type(' Say it briefly.');
  await keyboard.press('Control+Enter');
  await idle(page);
  assert.match(await page.locator('.said').textContent(), /briefly/);
  await keyboard.press('Alt+Slash');
  assert.equal(await page.locator('#keys-list dt').count(), await page.locator('#keys-list dd').count());
  await keyboard.press('Escape');
  await keyboard.press('Alt+s');
  await page.waitForSelector('#settings[open]');
  await keyboard.press('Escape');
  await keyboard.press('Alt+b');
  assert.equal(await page.isVisible('#side'), false);
  await keyboard.press('Alt+b');

  // Round the page by Tab: every control is reached, in the order of the page, and shows that it has the focus.
  await page.focus('.skip');
  const seen = [];
  for (let n = 0; n < 60; n += 1) {
    if (n) await keyboard.press('Tab');
    const at = await page.evaluate(() => {
      const e = document.activeElement;
      if (e === document.body) return null;
      const s = getComputedStyle(e);
      const box = e.closest('.box') && getComputedStyle(e.closest('.box'));
      const visible = (s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2) || (box && box.boxShadow !== 'none');
      e.dataset.walk ??= String(document.querySelectorAll('[data-walk]').length);
      return { walk: e.dataset.walk, name: e.id || e.getAttribute('aria-label') || e.textContent.trim(), visible, shown: e.checkVisibility() };
    });
    if (!at || seen.some(({ walk }) => walk === at.walk)) break;
    seen.push(at);
  }
  for (const { name, visible, shown } of seen) assert.ok(visible && shown, `${name} shows no focus`);
  const names = seen.map(({ name }) => name);
  const wanted = ['Skip to the message box', 'new', 'open-settings', 'theme', 'toggle', 'title', 'export', 'delete', 'log',
    'Edit this message', 'Ask again', 'Good answer', 'Bad answer', 'Correct it', 'input', 'route', 'tier', 'thought', 'send'];
  assert.deepEqual(names.filter((name) => wanted.includes(name)), wanted, names.join(' → '));
});

async function audit(page, what) {
  await page.evaluate(AXE);
  const found = await page.evaluate(() => window.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] }));
  const short = found.violations.map(({ id, help, nodes }) => ({ id, help, where: nodes.map((n) => `${n.target} ${n.failureSummary}`) }));
  assert.deepEqual(short, [], what);
  assert.ok(found.passes.length > 10, `${what}: axe looked at little`);
}

const RICH = '# A title\n\nText with `code`, a [link](https://a.example) and **bold**.\n\n- one\n- two\n\n> quote\n\n```py\nprint("a very long line that does not fit a small screen at all, so that it has to scroll sideways")\n```\n\n| a | b |\n|---|---|\n| a cell | another cell that is rather long |\n';

for (const scheme of ['light', 'dark']) {
  test(`axe finds nothing, ${scheme}`, async () => {
    const page = await browser.page({ scheme });
    await audit(page, 'empty');
    await ask(page, 'What is 17 + 25?');
    await pretend(page, [RICH]);
    await ask(page, 'Show everything');
    await page.locator('.message.answer').last().getByText('Correct it').click();
    await page.locator('.message.user').first().hover();
    await audit(page, 'conversation');
    await page.unroute('**/v1/chat/completions');
    await page.route('**/v1/chat/completions', (route) => route.fulfill({ status: 503, headers: { 'retry-after': '60' },
      contentType: 'application/json', body: '{"error": {"message": "the model is loading", "code": "loading"}}' }));
    await ask(page, 'And now?');
    await audit(page, 'a problem');
    await page.click('#open-settings');
    await audit(page, 'settings');
    await page.keyboard.press('Escape');
    await page.click('#open-keys');
    await audit(page, 'shortcuts');
    await page.keyboard.press('Escape');
    const lesson = { method: 'POST', headers: { 'content-type': 'application/json' }, body: '{"question": "Who waters the fern?", "answer": "Orvane."}' };
    assert.equal((await fetch(`${daemon.url}/v1/lessons`, lesson)).status, 200);
    await page.click('#open-lessons');
    await page.waitForSelector('#lessons-list li');
    await audit(page, 'lessons');
    await page.keyboard.press('Escape');
    await page.click('#open-documents');
    await page.setInputFiles('#documents-files', { name: 'note.txt', mimeType: 'text/plain', buffer: Buffer.from('The gutter is full.') });
    await page.waitForSelector('#documents-list li');
    await audit(page, 'documents');
    await page.locator('#documents-list').getByText('Show').click();
    await page.waitForSelector('#documents-text li');
    await audit(page, 'a document');
    await page.keyboard.press('Escape');
    await page.click('#delete');
    await audit(page, 'deleting');
  });
}

test('it fits 360 pixels, and the switch of colours overrules the system', async () => {
  const page = await browser.page({ width: 360, height: 640 });
  await pretend(page, [RICH, 'averylongword'.repeat(40)]);
  await ask(page, `Show ${'everything'.repeat(30)}`);
  const wide = () => page.evaluate(() => [document.documentElement.scrollWidth, document.querySelector('#log').scrollWidth]);
  for (const width of await wide()) assert.ok(width <= 360, `${width} pixels wide`);
  await audit(page, 'small');
  await page.click('#toggle');
  assert.deepEqual(await page.evaluate(() => [document.activeElement.id, document.querySelector('main').inert]), ['new', true]);
  await audit(page, 'small, with the list');
  await page.keyboard.press('Escape');
  assert.deepEqual(await page.evaluate(() => [document.activeElement.id, document.querySelector('main').inert]), ['toggle', false]);
  await page.click('#toggle');
  const paper = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await paper();
  await page.click('#theme');
  assert.equal(await paper(), light);
  await page.click('#theme');
  const dark = await paper();
  assert.notEqual(dark, light);
  await page.reload();
  assert.equal(await paper(), dark, 'it is remembered');
});

test('no request left the origin and the browser had nothing to complain about', () => browser.assertQuiet());
