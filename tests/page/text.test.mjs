// What models and users write: markup stays text, Markdown becomes what it means.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { ask, Browser, Daemon, pretend } from './harness.mjs';

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
  for (const [bomb, ms] of times) assert.ok(ms < 5000, `${JSON.stringify(bomb)} took ${ms} ms`);
});

test('no request left the origin and the browser had nothing to complain about', () => browser.assertQuiet());
