// Block Markdown → a list of plain data, for chat: what models write, and nothing that needs trust. HTML stays
// text. `raw` is the source of a block: while a reply grows, blocks whose `raw` is unchanged keep their nodes.
//
// A block is {type: 'paragraph' | 'heading' | 'code' | 'rule' | 'quote' | 'list' | 'table', raw, …}.

const DEPTH_MAX = 8;
const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s|$)/;
const QUOTE = /^ {0,3}>/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( {1,4}|$)(?=\S|$)/;
const ROW_RULE = /^[ |:-]+$/;

/** Splits a text into blocks. */
export function blocks(source, depth = 0) {
  const lines = source.replaceAll('\r\n', '\n').replaceAll('\t', '    ').split('\n');
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const read = (depth < DEPTH_MAX && special(lines, at, depth)) || paragraph(lines, at);
    read.block.raw = lines.slice(at, read.end).join('\n');
    found.push(read.block);
    at = read.end;
  }
  return found;
}

function special(lines, at, depth) {
  return fence(lines, at) ?? heading(lines, at) ?? rule(lines, at) ?? quote(lines, at, depth) ??
    list(lines, at, depth) ?? table(lines, at);
}

function fence(lines, at) {
  const [, marks, info] = FENCE.exec(lines[at]) ?? [];
  if (!marks) return null;
  let end = at + 1;
  const closes = (line) => {
    const text = line.trim();
    return text.length >= marks.length && text === marks[0].repeat(text.length);
  };
  while (end < lines.length && !closes(lines[end])) end += 1;
  const text = lines.slice(at + 1, end).join('\n');
  // While the reply grows the closing line is not there yet.
  return { block: { type: 'code', language: info.trim().split(' ', 1)[0], text }, end: Math.min(end + 1, lines.length) };
}

function heading(lines, at) {
  const [, marks] = HEADING.exec(lines[at]) ?? [];
  if (!marks) return null;
  let text = lines[at].trim().slice(marks.length).trim();
  while (text.endsWith('#')) text = text.slice(0, -1);
  return { block: { type: 'heading', level: marks.length, text: text.trim() }, end: at + 1 };
}

function isRule(line) {
  const text = line.replaceAll(' ', '');
  return text.length >= 3 && '-*_'.includes(text[0]) && text === text[0].repeat(text.length);
}

function rule(lines, at) {
  return isRule(lines[at]) ? { block: { type: 'rule' }, end: at + 1 } : null;
}

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  if (end === at) return null;
  const inside = lines.slice(at, end).map((line) => line.trimStart().replace(/^> ?/, ''));
  return { block: { type: 'quote', children: blocks(inside.join('\n'), depth + 1) }, end };
}

const indent = (line) => line.length - line.trimStart().length;

function item(line) {
  const [, space, mark] = ITEM.exec(line) ?? [];
  return mark ? { indent: space.length, mark, kind: '-*+'.includes(mark) ? mark : mark.at(-1) } : null;
}

function list(lines, at, depth) {
  const first = item(lines[at]);
  if (!first || first.indent > 3) return null;
  const items = [];
  let end = at;
  while (end < lines.length) {
    const start = item(lines[end]);
    if (!start || start.kind !== first.kind || start.indent > first.indent + 1 || isRule(lines[end])) break;
    const body = [lines[end].slice(start.indent + start.mark.length).trimStart()];
    const after = end;
    end = itemEnd(lines, end + 1, start);
    const width = start.indent + start.mark.length + 1;
    body.push(...lines.slice(after + 1, end).map((line) => line.slice(Math.min(indent(line), width))));
    items.push(blocks(body.join('\n').trimEnd(), depth + 1));
    // Blank lines may stand between two items.
    const next = skipBlank(lines, end);
    if (next < lines.length && item(lines[next])) end = next;
  }
  const ordered = !'-*+'.includes(first.kind);
  return { block: { type: 'list', ordered, start: ordered ? Number.parseInt(first.mark, 10) : 1, items }, end };
}

function skipBlank(lines, at) {
  while (at < lines.length && !lines[at].trim()) at += 1;
  return at;
}

/** The first line after an item's own: deeper lines belong to it, and a paragraph's next line. */
function itemEnd(lines, at, start) {
  let end = at;
  for (let next = at; next < lines.length; next += 1) {
    const line = lines[next];
    if (!line.trim()) continue;
    const deeper = indent(line) >= start.indent + 2;
    const flowing = next === end && !item(line) && !startsBlock(line);
    if (!deeper && !flowing) break;
    end = next + 1;
  }
  return end;
}

function cells(line) {
  const text = line.trim().replace(/^\|/, '');
  const row = [''];
  for (let at = 0; at < text.length; at += 1) {
    if (text[at] === '\\' && text[at + 1] === '|') {
      row[row.length - 1] += '|';
      at += 1;
    } else if (text[at] === '|') row.push('');
    else row[row.length - 1] += text[at];
  }
  if (row.length > 1 && !row.at(-1).trim()) row.pop();
  return row.map((cell) => cell.trim());
}

function table(lines, at) {
  const under = lines[at + 1];
  if (!lines[at].includes('|') || !under?.includes('-') || !under.includes('|') || !ROW_RULE.test(under)) return null;
  const head = cells(lines[at]);
  const aligns = cells(under).map((cell) => (cell.endsWith(':') ? (cell.startsWith(':') ? 'center' : 'right') : 'left'));
  if (head.length !== aligns.length) return null;
  let end = at + 2;
  while (end < lines.length && lines[end].includes('|')) end += 1;
  const rows = lines.slice(at + 2, end).map((line) => head.map((_, column) => cells(line)[column] ?? ''));
  return { block: { type: 'table', head, aligns, rows }, end };
}

function startsBlock(line) {
  return FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || isRule(line);
}

function paragraph(lines, at) {
  let end = at + 1;
  const goesOn = (line) => line.trim() && !startsBlock(line) && !(item(line)?.indent < 4);
  while (end < lines.length && goesOn(lines[end])) end += 1;
  const text = lines.slice(at, end).map((line) => line.trim()).join('\n');
  return { block: { type: 'paragraph', text }, end };
}
