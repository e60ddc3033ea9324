//! Small files for tests, written by code: what a PDF, a DOCX and an XLSX at least need.

use std::io::{Cursor, Write};

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// A PDF of these objects, the first of which is the catalogue.
pub fn pdf_of(objects: &[String]) -> Vec<u8> {
    let mut out = b"%PDF-1.4\n".to_vec();
    let mut places = Vec::new();
    for (number, object) in (1..).zip(objects) {
        places.push(out.len());
        out.extend(format!("{number} 0 obj\n{object}\nendobj\n").bytes());
    }
    let (xref, count) = (out.len(), objects.len() + 1);
    out.extend(format!("xref\n0 {count}\n0000000000 65535 f \n").bytes());
    places.iter().for_each(|place| out.extend(format!("{place:010} 00000 n \n").bytes()));
    out.extend(format!("trailer\n<< /Size {count} /Root 1 0 R >>\nstartxref\n{xref}\n%%EOF\n").bytes());
    out
}

pub fn stream(entries: &str, content: &str) -> String {
    format!("<< {entries} /Length {} >>\nstream\n{content}\nendstream", content.len())
}

/// A PDF whose pages have these contents, in the operators of PDF, and a font `/F`.
pub fn pdf_drawn(contents: &[String]) -> Vec<u8> {
    let kids: Vec<String> = (0..contents.len()).map(|n| format!("{} 0 R", 4 + 2 * n)).collect();
    let mut objects = vec![
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        format!("<< /Type /Pages /Kids [{}] /Count {} >>", kids.join(" "), kids.len()),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>".to_owned(),
    ];
    for (n, content) in contents.iter().enumerate() {
        objects.push(format!(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents {} 0 R /Resources << /Font << /F 3 0 R >> >> >>",
            5 + 2 * n
        ));
        objects.push(stream("", content));
    }
    pdf_of(&objects)
}

/// A PDF whose pages have these lines; an empty line is the space between two paragraphs.
pub fn pdf(pages: &[&str]) -> Vec<u8> {
    let drawn = |page: &&str| {
        let lines = page.lines().map(|line| match line {
            "" => "0 -20 Td".to_owned(),
            line => format!("({}) Tj 0 -14 Td", line.replace('(', "\\(").replace(')', "\\)")),
        });
        format!("BT /F 12 Tf 72 770 Td {} ET", lines.collect::<Vec<_>>().join(" "))
    };
    pdf_drawn(&pages.iter().map(drawn).collect::<Vec<_>>())
}

/// An archive of these parts.
pub fn archive(parts: &[(&str, &[u8])]) -> Vec<u8> {
    let mut out = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in parts {
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
        out.start_file(*name, options).unwrap();
        out.write_all(bytes).unwrap();
    }
    out.finish().unwrap().into_inner()
}

/// A DOCX of this body, in the elements of Word.
pub fn docx(body: &str) -> Vec<u8> {
    const WORD: &str = "xmlns:w=\"http://schemas.openxmlformats.org/wordprocessingml/2006/main\"";
    let styles = format!(
        "<w:styles {WORD}>\
         <w:style w:styleId=\"Titre\"><w:name w:val=\"Title\"/></w:style>\
         <w:style w:styleId=\"Titre1\"><w:name w:val=\"heading 1\"/></w:style>\
         <w:style w:styleId=\"Titre2\"><w:name w:val=\"heading 2\"/></w:style>\
         <w:style w:styleId=\"Own\"><w:name w:val=\"My own\"/><w:pPr><w:outlineLvl w:val=\"1\"/></w:pPr></w:style></w:styles>"
    );
    let document = format!("<?xml version=\"1.0\"?><w:document {WORD}><w:body>{body}</w:body></w:document>");
    archive(&[("word/styles.xml", styles.as_bytes()), ("word/document.xml", document.as_bytes())])
}

/// A paragraph of a DOCX; an empty style is none.
pub fn paragraph(style: &str, text: &str) -> String {
    let style = if style.is_empty() { String::new() } else { format!("<w:pPr><w:pStyle w:val=\"{style}\"/></w:pPr>") };
    format!("<w:p>{style}<w:r><w:t xml:space=\"preserve\">{text}</w:t></w:r></w:p>")
}

/// An XLSX of these sheets, each with its name and its rows in the elements of Excel. Style 1 is a day.
pub fn xlsx(sheets: &[(&str, &str)]) -> Vec<u8> {
    const MAIN: &str = "xmlns=\"http://schemas.openxmlformats.org/spreadsheetml/2006/main\"";
    const OFFICE: &str = "http://schemas.openxmlformats.org/officeDocument/2006/relationships";
    const PACKAGE: &str = "xmlns=\"http://schemas.openxmlformats.org/package/2006/relationships\"";
    let (mut listed, mut related, mut parts) = (String::new(), String::new(), Vec::new());
    for (n, (name, rows)) in (1..).zip(sheets) {
        listed += &format!("<sheet name=\"{name}\" sheetId=\"{n}\" r:id=\"r{n}\"/>");
        related +=
            &format!("<Relationship Id=\"r{n}\" Type=\"{OFFICE}/worksheet\" Target=\"worksheets/sheet{n}.xml\"/>");
        let sheet = format!("<worksheet {MAIN}><sheetData>{rows}</sheetData></worksheet>");
        parts.push((format!("xl/worksheets/sheet{n}.xml"), sheet));
    }
    let of = |part: &str, text: String| (part.to_owned(), text);
    parts.extend([
        of("xl/workbook.xml", format!("<workbook {MAIN} xmlns:r=\"{OFFICE}\"><sheets>{listed}</sheets></workbook>")),
        of("xl/_rels/workbook.xml.rels", format!("<Relationships {PACKAGE}>{related}</Relationships>")),
        of(
            "xl/styles.xml",
            format!("<styleSheet {MAIN}><cellXfs><xf numFmtId=\"0\"/><xf numFmtId=\"14\"/></cellXfs></styleSheet>"),
        ),
        of(
            "_rels/.rels",
            format!(
                "<Relationships {PACKAGE}><Relationship Id=\"r1\" Type=\"{OFFICE}/officeDocument\" Target=\"xl/workbook.xml\"/></Relationships>"
            ),
        ),
    ]);
    let parts: Vec<(&str, &[u8])> = parts.iter().map(|(name, text)| (name.as_str(), text.as_bytes())).collect();
    archive(&parts)
}

/// A row of an XLSX, from 1: texts, and numbers as they are.
pub fn row(number: usize, cells: &[&str]) -> String {
    let cell = |(n, text): (u8, &&str)| {
        let place = format!("{}{number}", char::from(b'A' + n));
        match (text.parse::<f64>(), text.strip_prefix("day ")) {
            (_, Some(day)) => format!("<c r=\"{place}\" s=\"1\"><v>{day}</v></c>"),
            (Ok(_), _) => format!("<c r=\"{place}\"><v>{text}</v></c>"),
            _ if text.is_empty() => String::new(),
            _ => format!("<c r=\"{place}\" t=\"inlineStr\"><is><t>{text}</t></is></c>"),
        }
    };
    format!("<row r=\"{number}\">{}</row>", (0..).zip(cells).map(cell).collect::<String>())
}
