// What the browser keeps, what stays text, what the keyboard reaches, and how it looks to assistive technology.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { after, before, test } from 'node:test';

import { answers, ask, bodyOf, Browser, Daemon, idle, pretend, send, until } from './harness.mjs';

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

const HOSTILE = [
  '<script>window.pwned = 1</script>', '<img src=x onerror="window.pwned = 2">', '<svg onload=alert(1)>',
  '[click](javascript:alert(1))', '[data](data:text/html,<script>alert(1)</script>)', '![alt](https://evil.example/a.png)',
  '`<b>code</b>`', '```html\n<iframe src="https://evil.example"></iframe>\n```', '| <i>a</i> | b |\n|---|---|\n| <u>c</u> | d |',
  '<a href="https://evil.example" onclick="alert(1)">x</a>', '[ref]: https://evil.example/leak', '# <style>*{display:none}</style>',
].join('\n\n');

test('markup in questions, answers, titles and storage stays text', async () => {
  const page = await browser.page();
  // In pieces that cut through tags.
  await pretend(page, HOSTILE.match(/[^]{1,7}/g));
  await ask(page, HOSTILE);
  const check = async () => {
    const found = await page.evaluate(() => ({
      pwned: window.pwned,
      made: document.querySelectorAll('#messages :is(script, img, iframe, style, i, u, svg:not(.icon), [onerror], [onload], [onclick])').length,
      links: [...document.querySelectorAll('#messages a')].map((a) => [a.protocol, a.rel, a.target]),
      said: document.querySelector('.said').textContent,
      answer: document.querySelector('.body').textContent,
    }));
    assert.deepEqual([found.pwned, found.made], [undefined, 0]);
    assert.equal(found.said, HOSTILE);
    for (const part of ['<script>window.pwned = 1</script>', '<img src=x onerror="window.pwned = 2">', '<b>code</b>', '<i>a</i>',
      '<iframe src="https://evil.example"></iframe>', '[ref]: https://evil.example/leak', 'click', 'image: alt']) {
      assert.ok(found.answer.includes(part), `${part} is not in ${found.answer}`);
    }
    assert.ok(found.links.length > 0);
    for (const link of found.links) assert.deepEqual(link, ['https:', 'noopener noreferrer', '_blank']);
  };
  await check();
  await page.reload();
  await page.locator('.entry').first().click();
  await check();
});

test('Markdown becomes what it means, in linear time', async () => {
  const page = await browser.page();
  const html = (source) => page.evaluate(async (text) => {
    const { show } = await import('/page/render.js');
    const box = document.createElement('div');
    show(box, text);
    box.querySelectorAll('.code-head').forEach((head) => head.remove());
    return box.innerHTML.replaceAll(/ (tabindex|role|aria-label|rel|target|class|title)="[^"]*"/g, '');
  }, source);
  for (const [source, wanted] of [
    ['# One\ntext', '<h3>One</h3><p>text</p>'],
    ['**bold *both* more** _it_ ~~gone~~ `a*b`', '<p><strong>bold <em>both</em> more</strong> <em>it</em> <del>gone</del> <code>a*b</code></p>'],
    ['***all***', '<p><strong><em>all</em></strong></p>'],
    ['2 * 3 * 4 and snake_case_name **open', '<p>2 * 3 * 4 and snake_case_name **open</p>'],
    ['a\nb', '<p>a<br>b</p>'],
    ['- a\n  - b\n- c', '<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul>'],
    ['3. a\n\n4. b\n\ntext', '<ol start="3"><li>a</li><li>b</li></ol><p>text</p>'],
    ['1. a\n   ```py\n   x\n   ```\n2. b', '<ol><li>a<div><pre><code>x</code></pre></div></li><li>b</li></ol>'],
    ['> q\n> *r*', '<blockquote><p>q<br><em>r</em></p></blockquote>'],
    ['```\nopen <b>', '<div><pre><code>open &lt;b&gt;</code></pre></div>'],
    ['| a | b |\n|:-:|--:|\n| 1 | `x\\|y` |', '<div><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td><code>x|y</code></td></tr></tbody></table></div>'],
    ['---', '<hr>'],
    ['see https://a.example/b_(c). and [d](https://e.example "t")', '<p>see <a href="https://a.example/b_(c)">https://a.example/b_(c)</a>. and <a href="https://e.example/">d</a></p>'],
    ['[x](/relative) \\*no\\*', '<p>x *no*</p>'],
  ]) assert.equal(await html(source), wanted, source);
  const times = await page.evaluate(async () => {
    const { show } = await import('/page/render.js');
    const bombs = ['*', '_a ', '**a', '[', '![', '`', '` ``', '<http', '> ', '- ', '#', '|', '| a |\n|-|\n', '  - a\n', '1. ', '\\', 'http://', '~~~', '\n', '((', '](', '*a _b ~~c '];
    return bombs.map((bomb) => {
      const text = bomb.repeat(60_000 / bomb.length);
      const start = performance.now();
      show(document.createElement('div'), text);
      return [bomb, performance.now() - start];
    });
  });
  for (const [bomb, ms] of times) assert.ok(ms < 3000, `${JSON.stringify(bomb)} took ${ms} ms`);
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
  await audit(page, 'small, with the list');
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
