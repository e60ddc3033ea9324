// A daemon with a state folder of its own, a browser, and what every test watches: no request may leave the
// daemon's origin, no script may fail, and the page's policy must never have had to step in.

import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

import { chromium } from 'playwright-core';

const BIN = process.env.DAEMON_BIN;
const CHROMIUM = process.env.CHROMIUM_BIN;
/** Longest wait for anything, ms. */
export const PATIENCE = 180_000;

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

/** Waits until `check` gives something true, and returns that. */
export async function until(what, check) {
  const end = Date.now() + PATIENCE;
  for (;;) {
    const found = await check();
    if (found) return found;
    assert.ok(Date.now() < end, `timed out: ${what}`);
    await sleep(25);
  }
}

async function freePort() {
  const server = createServer();
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  const { port } = server.address();
  await new Promise((done) => server.close(done));
  return port;
}

export class Daemon {
  /**
   * Starts one; at most two replies at a time, so that the third is refused, and a further model. `prepare` may put
   * files into the state folder first.
   */
  static async start(prepare = async () => {}) {
    const daemon = new Daemon();
    daemon.state = await mkdtemp(join(tmpdir(), 'chimere-page-'));
    await prepare(daemon.state);
    daemon.url = `http://127.0.0.1:${await freePort()}`;
    // No configuration of the developer's own may reach the test.
    daemon.env = { ...process.env, XDG_CONFIG_HOME: join(daemon.state, 'config') };
    const config = join(daemon.state, 'page.toml');
    const nano = fileURLToPath(new URL('../../nano/nano.gguf', import.meta.url));
    await writeFile(config, `[replies]\nrequests_max = 2\n[models]\nfiles = { small = ${JSON.stringify(nano)} }\n`);
    const args = ['serve', '--config', config, '--listen', daemon.url.slice(7), '--state-dir', daemon.state];
    daemon.child = spawn(BIN, args, { env: daemon.env, stdio: ['ignore', 'ignore', 'pipe'] });
    daemon.log = '';
    daemon.child.stderr.on('data', (data) => { daemon.log += data; });
    await until(`the daemon is ready\n${daemon.log}`, async () => {
      assert.equal(daemon.child.exitCode, null, daemon.log);
      return (await fetch(`${daemon.url}/health`).catch(() => null))?.ok;
    });
    return daemon;
  }

  async post(path, body) {
    const headers = body ? { 'content-type': 'application/json' } : {};
    const answer = await fetch(this.url + path, { method: 'POST', headers, body: body && JSON.stringify(body) });
    assert.ok(answer.ok, `${path}: ${answer.status}`);
    return answer;
  }

  pause() { return this.post('/v1/admin/pause'); }
  resume() { return this.post('/v1/admin/resume'); }
  async status() { return (await fetch(`${this.url}/v1/status`)).json(); }

  /** Kills the process that hosts the model. */
  async killEngine() {
    process.kill((await this.status()).engine.pid, 'SIGKILL');
  }

  async command(...args) {
    return (await promisify(execFile)(BIN, args, { env: this.env, maxBuffer: 1 << 26 })).stdout;
  }

  /** The turns that the daemon remembers. */
  async turns() {
    const lines = await this.command('memory', '--url', this.url, 'list', '--json');
    return lines.trim().split('\n').filter(Boolean).map((line) => JSON.parse(line));
  }

  addKey(name) {
    return this.command('keys', '--state-dir', this.state, 'add', name).then((key) => key.trim());
  }

  async stop() {
    this.child.kill('SIGTERM');
    await new Promise((done) => (this.child.exitCode === null ? this.child.on('exit', done) : done()));
    await rm(this.state, { recursive: true, force: true });
  }
}

export class Browser {
  #complaints = [];
  requests = [];

  static async start(daemon) {
    const browser = new Browser();
    browser.daemon = daemon;
    browser.inner = await chromium.launch({ executablePath: CHROMIUM, args: ['--no-sandbox', '--disable-gpu'] });
    return browser;
  }

  /** A page of a fresh profile, loaded and ready. */
  async page({ width = 1200, height = 800, scheme = 'light', ready = true, script = null } = {}) {
    const options = { viewport: { width, height }, colorScheme: scheme, reducedMotion: 'reduce', acceptDownloads: true };
    const context = await this.inner.newContext(options);
    context.setDefaultTimeout(PATIENCE);
    if (script) await context.addInitScript(script);
    const page = await context.newPage();
    this.watch(page);
    await page.goto(this.daemon.url);
    if (ready) await page.waitForSelector('.model[data-state="ready"]');
    return page;
  }

  watch(page) {
    page.on('request', (request) => this.requests.push(request.url()));
    page.on('pageerror', (error) => this.#complaints.push(error.stack ?? String(error)));
    page.on('dialog', (dialog) => { this.#complaints.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
    page.on('console', (message) => {
      // The browser logs each answer with an error status; the tests look at what the page makes of it.
      if (message.type() === 'error' && !message.text().startsWith('Failed to load resource')) {
        this.#complaints.push(message.text());
      }
    });
  }

  /** To be called at the end. */
  assertQuiet() {
    const own = (url) => url.startsWith(`${this.daemon.url}/`) || url.startsWith(`blob:${this.daemon.url}/`);
    assert.deepEqual(this.requests.filter((url) => !own(url)), [], 'requests left the origin');
    assert.ok(this.requests.length > 15, 'the requests were not seen');
    assert.deepEqual(this.#complaints, [], 'the browser complained');
  }

  stop() { return this.inner.close(); }
}

export const send = async (page, text) => {
  await page.fill('#input', text);
  await page.press('#input', 'Enter');
};

/** Waits until no reply is under way in the conversation on screen. */
export const idle = (page) => page.waitForSelector('#send', { state: 'visible' });

export const ask = async (page, text) => {
  await send(page, text);
  await idle(page);
};

export const answers = (page) => page.locator('.message.answer');
export const bodyOf = (page) => page.locator('.message.answer .body').last();

/**
 * Asks for a story with decoding stopped, and lets the engine go for moments until some of it is on screen: the
 * reply is then half written, and stays so until `resume`.
 */
export async function halfAStory(daemon, page) {
  await daemon.pause();
  await send(page, 'Tell me a long story about a dog and a cat.');
  for (let tries = 0; tries < 20; tries += 1) {
    await page.waitForSelector('#stop', { state: 'visible' });
    for (;;) {
      await daemon.resume();
      await daemon.pause();
      await sleep(150);
      if (await page.isVisible('#send')) break;
      const text = await bodyOf(page).textContent();
      if (text.length > 3) return text;
    }
    // It was over before it was seen.
    await page.press('body', 'Alt+r');
  }
  throw new Error('no story lasted long enough');
}

/** Answers the next chat requests of `page` with `pieces` of text, as the daemon writes them. */
export async function pretend(page, pieces) {
  const chunk = (delta, more = {}) => `data: ${JSON.stringify({ id: 'chatcmpl-x', model: 'nano',
    choices: [{ index: 0, delta, finish_reason: null }], ...more })}\n\n`;
  const body = `${pieces.map((content) => chunk({ content })).join('')}data: [DONE]\n\n`;
  await page.route('**/v1/chat/completions', (route) => route.fulfill({ contentType: 'text/event-stream', body }));
}
