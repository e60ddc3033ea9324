// The two pictures of the README, taken of the real daemon in headless Chromium: `pictures.sh CHIMERE`.
// The chat page answers two questions with the shipped model. The report is that of the third night of a published
// week, as `nano/week` keeps it, shown by the daemon.

import { execFileSync } from 'node:child_process';
import { mkdir, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { Browser, Daemon, ask } from './harness.mjs';

const at = (path) => fileURLToPath(new URL(`../../${path}`, import.meta.url));
const OUT = at('docs/pictures');
/** Largest picture, bytes. */
const BYTES_MAX = 60_000;
const WEEK = 'nano/week/full-2.json.xz';
const NIGHT = 3;

async function keep(page, name, options = {}) {
  const path = join(OUT, name);
  await page.screenshot({ path, ...options });
  const { size } = await stat(path);
  if (size > BYTES_MAX) throw new Error(`${name} has ${size} bytes, more than ${BYTES_MAX}`);
  console.log(`${path}: ${size} bytes`);
}

async function chat(browser) {
  const page = await browser.page({ width: 860, height: 560 });
  await ask(page, 'What is 17 + 25?');
  await ask(page, 'Which port does HTTPS use?');
  await page.mouse.move(0, 0);
  await keep(page, 'chat.png');
}

async function lived() {
  const week = JSON.parse(execFileSync('xz', ['-dc', at(WEEK)], { maxBuffer: 1 << 26 }));
  return week.nights[NIGHT - 1].jobs.find((job) => job.report.order.job === 'train').report;
}

/** A state folder whose last run is the lived night. */
async function remember(state, report) {
  const { order: { id, job, started_ms }, ended_ms, outcome } = report;
  const folder = join(state, 'runs', id);
  await mkdir(folder, { recursive: true });
  await writeFile(join(folder, 'report.json'), JSON.stringify(report));
  const past = [{ id, job, started_ms, ended_ms, outcome }];
  const record = { format: 1, serial: 1, paused: false, run: null, past, jobs: {}, notices: [] };
  await writeFile(join(state, 'night.json'), JSON.stringify(record));
}

async function night(daemon, browser) {
  const context = await browser.inner.newContext({ viewport: { width: 760, height: 440 }, colorScheme: 'light' });
  const page = await context.newPage();
  await page.goto(`${daemon.url}/v1/night/report?format=html`);
  await page.click('summary:has-text("Exams")');
  await page.evaluate(() => window.scrollTo(0, 0));
  await keep(page, 'night.png');
}

await mkdir(OUT, { recursive: true });
const report = await lived();
const daemon = await Daemon.start((state) => remember(state, report));
const browser = await Browser.start(daemon);
try {
  await chat(browser);
  await night(daemon, browser);
} finally {
  await browser.stop();
  await daemon.stop();
}
