// Small files of each kind that becomes a document, written by code.

import { crc32 } from 'node:zlib';

/** A PDF whose pages have a line each; without lines it is as a scan without text. */
function pdf(...lines) {
  const kids = lines.map((_, n) => `${4 + 2 * n} 0 R`).join(' ');
  const objects = ['<< /Type /Catalog /Pages 2 0 R >>', `<< /Type /Pages /Kids [${kids}] /Count ${lines.length} >>`,
    '<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>'];
  for (const line of lines) {
    const drawn = line ? `BT /F 12 Tf 72 700 Td (${line}) Tj ET` : '0 0 99 99 re f';
    objects.push(`<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents ${objects.length + 2} 0 R `
      + '/Resources << /Font << /F 3 0 R >> >> >>', `<< /Length ${drawn.length} >>\nstream\n${drawn}\nendstream`);
  }
  let text = '%PDF-1.4\n';
  const places = objects.map((object, n) => {
    const at = text.length;
    text += `${n + 1} 0 obj\n${object}\nendobj\n`;
    return `${String(at).padStart(10, '0')} 00000 n \n`;
  });
  const size = objects.length + 1;
  const end = `trailer\n<< /Size ${size} /Root 1 0 R >>\nstartxref\n${text.length}\n%%EOF\n`;
  return Buffer.from(`${text}xref\n0 ${size}\n0000000000 65535 f \n${places.join('')}${end}`, 'latin1');
}

/** An archive of these parts, not compressed. */
function archive(parts) {
  const [files, entries] = [[], []];
  let at = 0;
  for (const [name, text] of Object.entries(parts)) {
    const [label, body] = [Buffer.from(name), Buffer.from(text)];
    const head = Buffer.alloc(26);
    head.writeUInt16LE(20, 0);
    head.writeUInt32LE(crc32(body), 10);
    head.writeUInt32LE(body.length, 14);
    head.writeUInt32LE(body.length, 18);
    head.writeUInt16LE(label.length, 22);
    const behind = Buffer.alloc(14);
    behind.writeUInt32LE(at, 10);
    entries.push(Buffer.from('PK\x01\x02\x14\x00', 'latin1'), head, behind, label);
    files.push(Buffer.from('PK\x03\x04', 'latin1'), head, label, body);
    at += 30 + label.length + body.length;
  }
  const list = Buffer.concat(entries);
  const end = Buffer.alloc(22);
  end.write('PK\x05\x06', 'latin1');
  end.writeUInt16LE(Object.keys(parts).length, 8);
  end.writeUInt16LE(Object.keys(parts).length, 10);
  end.writeUInt32LE(list.length, 12);
  end.writeUInt32LE(at, 16);
  return Buffer.concat([...files, list, end]);
}

const WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"';
const docx = (...lines) => archive({
  'word/document.xml': `<w:document ${WORD}><w:body>${lines.map((line) => `<w:p><w:r><w:t>${line}</w:t></w:r></w:p>`).join('')}</w:body></w:document>`,
});

const OFFICE = 'http://schemas.openxmlformats.org/officeDocument/2006/relationships';
const PACKAGE = 'xmlns="http://schemas.openxmlformats.org/package/2006/relationships"';
const MAIN = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"';
const xlsx = (sheet, ...rows) => archive({
  '_rels/.rels': `<Relationships ${PACKAGE}><Relationship Id="a" Type="${OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>`,
  'xl/_rels/workbook.xml.rels': `<Relationships ${PACKAGE}><Relationship Id="a" Type="${OFFICE}/worksheet" Target="worksheets/a.xml"/></Relationships>`,
  'xl/workbook.xml': `<workbook ${MAIN} xmlns:r="${OFFICE}"><sheets><sheet name="${sheet}" sheetId="1" r:id="a"/></sheets></workbook>`,
  'xl/worksheets/a.xml': `<worksheet ${MAIN}><sheetData>${rows.map((cells) => `<row>${cells.map((cell) => `<c t="inlineStr"><is><t>${cell}</t></is></c>`).join('')}</row>`).join('')}</sheetData></worksheet>`,
});

const file = (name, mimeType, bytes) => ({ name, mimeType, buffer: Buffer.from(bytes) });

/** Each with a question that it answers, its answer, and where it stands. */
export const PAPERS = [
  { file: file('boiler.pdf', 'application/pdf', pdf('Read this first.', 'The code of the boiler is 4711.')), question: 'What is the code of the boiler?', says: '4711', place: 'page 2' },
  { file: file('rules.docx', '', docx('Rules of the house', 'The cellar key hangs behind the clock.')), question: 'Where does the cellar key hang?', says: 'behind the clock', place: 'line 1' },
  { file: file('people.xlsx', '', xlsx('Phones', ['name', 'phone'], ['Noor the plumber', '555-01'])), question: 'Which phone has the plumber?', says: '555-01', place: 'sheet Phones, row 1' },
  { file: file('pears.html', 'text/html', '<title>Pears</title><p>Prune pear trees in <b>March</b>.</p>'), question: 'When does one prune pear trees?', says: 'in March', place: 'line 1' },
  { file: file('shed.md', '', '# Shed\n\nThe ladder leans behind the shed.\n'), question: 'Where does the ladder lean?', says: 'behind the shed', place: 'line 1' },
  { file: file('bins.csv', 'text/csv', 'bin,day\nyellow,Tuesday\n'), question: 'On which day is the yellow bin?', says: 'Tuesday', place: 'line 1' },
  { file: file('valve.rs', '', '/// Opens the hatch of the tank.\nfn open_hatch() {}\n'), question: 'What opens the hatch of the tank?', says: 'open_hatch', place: 'line 1' },
];

export const SCAN = file('scan.pdf', 'application/pdf', pdf(''));
export const NO_PDF = file('broken.pdf', 'application/pdf', 'not a PDF at all');
