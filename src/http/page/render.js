// The trees of `markdown.js` and `inline.js` → nodes, made by createElement and text alone.

import { copy, h, icon } from './dom.js';
import { inline } from './inline.js';
import { blocks } from './markdown.js';

/** Blocks that a container shows: their sources and nodes. */
const shown = new WeakMap();

/** Shows `source` in `container`. Blocks that did not change keep their nodes, and with them selections and focus. */
export function show(container, source) {
  const before = shown.get(container) ?? [];
  const after = blocks(source).map((block) => ({ raw: `${block.type}\n${block.raw}`, block }));
  let same = 0;
  while (same < before.length && same < after.length && before[same].raw === after[same].raw) same += 1;
  before.slice(same).forEach(({ node }) => node.remove());
  after.forEach((entry, at) => {
    entry.node = at < same ? before[at].node : render(entry.block);
    if (at >= same) container.append(entry.node);
  });
  shown.set(container, after);
}

function render(block) {
  switch (block.type) {
    case 'heading':
      // The page has the first level, its messages the second.
      return h(`h${Math.min(6, block.level + 2)}`, {}, spans(block.text));
    case 'code':
      return code(block);
    case 'rule':
      return h('hr');
    case 'quote':
      return h('blockquote', {}, block.children.map(render));
    case 'list':
      return h(block.ordered ? 'ol' : 'ul', { start: block.start === 1 ? null : block.start },
        block.items.map((children) => h('li', {}, tight(children))));
    case 'table':
      return table(block);
    default:
      return h('p', {}, spans(block.text));
  }
}

/** An item of one paragraph needs no paragraph. */
function tight(children) {
  const [first, ...rest] = children;
  if (first?.type !== 'paragraph' || rest.some((child) => child.type === 'paragraph')) return children.map(render);
  return [...spans(first.text), ...rest.map(render)];
}

function spans(text) {
  return inline(text).map(span);
}

function span(node) {
  if (typeof node === 'string') return node;
  switch (node.tag) {
    case 'br':
      return h('br');
    case 'code':
      return h('code', {}, node.text);
    case 'a':
      // The title shows where it leads, whatever its words say.
      return h('a', { href: node.href, title: node.href, target: '_blank', rel: 'noopener noreferrer' },
        node.children.map(span));
    default:
      return h(node.tag, {}, node.children.map(span));
  }
}

function code({ language, text }) {
  const say = h('span', { role: 'status', class: 'sr' });
  const button = h('button', { type: 'button', class: 'quiet', onclick: async () => {
    await copy(text).then(() => { say.textContent = 'Copied'; }, () => { say.textContent = 'Not copied'; });
    button.lastChild.textContent = say.textContent;
    setTimeout(() => { button.lastChild.textContent = 'Copy'; }, 1500);
  } }, icon('copy'), h('span', {}, 'Copy'));
  return h('div', { class: 'code' },
    h('div', { class: 'code-head' }, h('span', {}, language || 'code'), say, button),
    h('pre', { tabindex: 0, role: 'group', 'aria-label': language ? `Code, ${language}` : 'Code' }, h('code', {}, text)));
}

function table({ head, aligns, rows }) {
  const cell = (tag) => (text, column) => h(tag, { class: `to-${aligns[column]}` }, spans(text));
  return h('div', { class: 'table', tabindex: 0, role: 'group', 'aria-label': 'Table' },
    h('table', {},
      h('thead', {}, h('tr', {}, head.map(cell('th')))),
      h('tbody', {}, rows.map((row) => h('tr', {}, row.map(cell('td')))))));
}
