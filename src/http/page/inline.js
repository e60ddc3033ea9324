// Inline Markdown → a tree of plain data; `render.js` makes nodes of it. The text comes from a model, so it is
// hostile: the time is linear in its length, the depth is bounded, and no address but http, https, mailto is a link.
//
// A node is a string, or {tag: 'strong' | 'em' | 'del', children}, {tag: 'code', text}, {tag: 'br'},
// {tag: 'a', href, children}.

const MARKERS = { '**': 'strong', __: 'strong', '~~': 'del', '*': 'em', _: 'em' };
const DEPTH_MAX = 12;
/** Longest label and address of a link, characters: beyond them brackets are just brackets. */
const LABEL_MAX = 600;
const ADDRESS_MAX = 2000;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const SPACE = /\s/;
const WORD = /[\p{L}\p{N}]/u;

/** The address if it may be followed, else null. */
export function safeAddress(text) {
  try {
    const url = new URL(text);
    return ['http:', 'https:', 'mailto:'].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

/** Parses one block's text. Inside a link no further links are made. */
export function inline(source, inLink = false) {
  // Open emphasis, innermost last; the first frame is the text itself.
  const frames = [{ marker: '', children: [] }];
  // Lengths of backtick runs that are known to have no partner further on.
  const lonely = new Set();
  let at = 0;

  const put = (node) => {
    const { children } = frames.at(-1);
    if (typeof node === 'string' && typeof children.at(-1) === 'string') children[children.length - 1] += node;
    else if (node !== '') children.push(node);
  };
  /** Gives up the innermost open marker: it was text. */
  const spill = () => {
    const { marker, children } = frames.pop();
    put(marker);
    children.forEach(put);
  };
  const close = (marker) => {
    while (frames.at(-1).marker !== marker) spill();
    put({ tag: MARKERS[marker], children: frames.pop().children });
  };

  /** Emphasis at `at`; true if something was taken. */
  const emphasis = () => {
    const top = frames.at(-1).marker;
    const double = source.slice(at, at + 2);
    let marker = double in MARKERS ? double : source[at];
    if (top && source.startsWith(top, at) && !SPACE.test(source[at - 1] ?? ' ')) marker = top;
    if (!(marker in MARKERS)) return false;
    const [before, after] = [source[at - 1] ?? ' ', source[at + marker.length] ?? ' '];
    const inWord = marker[0] === '_';
    const closes = !SPACE.test(before) && !(inWord && WORD.test(after));
    const opens = !SPACE.test(after) && !(inWord && WORD.test(before));
    const isOpen = frames.some((frame) => frame.marker === marker);
    if (closes && isOpen) close(marker);
    else if (opens && !isOpen && frames.length <= DEPTH_MAX) frames.push({ marker, children: [] });
    else put(marker);
    at += marker.length;
    return true;
  };

  const code = () => {
    let length = 1;
    while (source[at + length] === '`') length += 1;
    const end = lonely.has(length) ? -1 : closing(source, at + length, length);
    if (end < 0) {
      lonely.add(length);
      put('`'.repeat(length));
      at += length;
      return;
    }
    let text = source.slice(at + length, end).replaceAll('\n', ' ');
    if (text.startsWith(' ') && text.endsWith(' ') && text.trim()) text = text.slice(1, -1);
    put({ tag: 'code', text });
    at = end + length;
  };

  /** `[label](address)`, `![label](address)`, `<address>` or a bare address; false if there is none. */
  const link = () => {
    const found = source[at] === 'h' ? bare(source, at) : source[at] === '<' ? angled(source, at) : bracketed(source, at);
    if (!found) return false;
    const { label, address, length, image } = found;
    const href = safeAddress(address);
    // Images are not loaded: an address that a model wrote must not be asked for without a click.
    const children = image ? [`image: ${label || 'without a description'}`] : label === null ? [address] : inline(label, true);
    if (href) put({ tag: 'a', href, children });
    else if (label === null) return false;
    else children.forEach(put);
    at += length;
    return true;
  };

  while (at < source.length) {
    const char = source[at];
    if (char === '\n') {
      put({ tag: 'br' });
      at += 1;
    } else if (char === '\\' && PUNCTUATION.test(source[at + 1] ?? '')) {
      put(source[at + 1]);
      at += 2;
    } else if (char === '`') code();
    else if (!inLink && '[!<h'.includes(char) && link()) continue;
    else if ('*_~'.includes(char) && emphasis()) continue;
    else {
      put(char);
      at += 1;
    }
  }
  while (frames.length > 1) spill();
  return frames[0].children;
}

/** Where the run of exactly `length` backticks after `from` begins, or −1. */
function closing(source, from, length) {
  let at = source.indexOf('`', from);
  while (at >= 0) {
    let end = at;
    while (source[end] === '`') end += 1;
    if (end - at === length) return at;
    at = source.indexOf('`', end);
  }
  return -1;
}

function bracketed(source, start) {
  const image = source[start] === '!';
  const open = start + (image ? 1 : 0);
  if (source[open] !== '[') return null;
  let depth = 0;
  let at = open;
  for (const stop = Math.min(source.length, open + LABEL_MAX); at < stop; at += 1) {
    if (source[at] === '\\') at += 1;
    else if (source[at] === '[') depth += 1;
    else if (source[at] === ']' && (depth -= 1) === 0) break;
  }
  if (source[at] !== ']' || depth !== 0 || source[at + 1] !== '(') return null;
  const label = source.slice(open + 1, at);
  let end = at + 2;
  for (depth = 1; end < source.length && end < at + ADDRESS_MAX; end += 1) {
    if (source[end] === '\n') return null;
    if (source[end] === '(') depth += 1;
    else if (source[end] === ')' && (depth -= 1) === 0) break;
  }
  if (source[end] !== ')' || depth !== 0) return null;
  // A title after the address is not shown.
  const address = source.slice(at + 2, end).trim().split(/\s/, 1)[0].replace(/^<|>$/g, '');
  return { label, address, length: end + 1 - start, image };
}

function angled(source, start) {
  if (!/^<(https?:|mailto:)/i.test(source.slice(start, start + 9))) return null;
  const end = source.indexOf('>', start);
  if (end < 0 || end - start > ADDRESS_MAX) return null;
  const address = source.slice(start + 1, end);
  return /\s/.test(address) ? null : { label: null, address, length: end + 1 - start };
}

function bare(source, start) {
  if (WORD.test(source[start - 1] ?? ' ')) return null;
  const [found] = /^https?:\/\/[^\s<>"'`]*/.exec(source.slice(start, start + ADDRESS_MAX)) ?? [];
  if (!found) return null;
  let length = found.length;
  // What ends a sentence does not end an address; a bracket does if it was opened inside.
  while (/[.,;:!?*_~)\]]/.test(found[length - 1])) {
    if (found[length - 1] === ')' && found.slice(0, length).includes('(')) break;
    length -= 1;
  }
  return length > 8 ? { label: null, address: found.slice(0, length), length } : null;
}
