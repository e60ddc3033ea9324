//! PDF, DOCX and XLSX: what is read of them, under which headings and at which places.

use super::chunk::chunks;
use super::read::{Kind, ReadError, Reading, read};
use super::samples::{docx, paragraph, pdf, pdf_drawn, pdf_of, row, stream, xlsx};

fn blocks(reading: &Reading) -> Vec<(String, String)> {
    let of = |block: &super::read::Block| {
        let heading = reading.headings[block.heading as usize].clone();
        (heading, reading.text[block.start..block.end].to_owned())
    };
    reading.blocks.iter().map(of).collect()
}

fn pairs(wanted: &[(&str, &str)]) -> Vec<(String, String)> {
    wanted.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

#[test]
fn a_pdf_is_read_page_by_page_in_lines_and_paragraphs() {
    let file = pdf(&["The boiler has\nthe code (4711).\n\nIt was put in in 1987.", "Ring the plumber."]);
    let reading = read(Kind::Pdf, &file).unwrap();
    let wanted = [("", "The boiler has\nthe code (4711)."), ("", "It was put in in 1987."), ("", "Ring the plumber.")];
    assert_eq!(blocks(&reading), pairs(&wanted));
    let pages: Vec<Option<u32>> = chunks(&reading).unwrap().iter().map(|chunk| chunk.page).collect();
    assert_eq!(pages, [Some(1), Some(2)], "a passage does not go over two pages");
    // Words that are set apart by moves, a ligature of the file's own encoding, a column that is drawn later.
    let moved = "BT /F 12 Tf 72 700 Td [(Two) -600 (words)] TJ 200 0 Td (right) Tj -100 0 Td (left) Tj ET".to_owned();
    assert_eq!(read(Kind::Pdf, &pdf_drawn(&[moved])).unwrap().text.trim(), "Two words right left");
}

#[test]
fn a_page_that_fails_costs_itself_and_a_scan_says_so() {
    let good = |word: &str| format!("BT /F 12 Tf 72 700 Td ({word}) Tj ET");
    // Text without a font: the reader panics.
    let bad = "BT 72 700 Td (lost) Tj ET".to_owned();
    let reading = read(Kind::Pdf, &pdf_drawn(&[good("one"), bad.clone(), good("three")])).unwrap();
    assert_eq!((blocks(&reading), reading.unread_pages), (pairs(&[("", "one"), ("", "three")]), vec![2]));
    let none = read(Kind::Pdf, &pdf_drawn(&[bad])).unwrap_err().to_string();
    assert_eq!(none, "the file cannot be read as PDF: none of its pages can be read");
    assert_eq!(read(Kind::Pdf, &pdf_drawn(&vec!["0 0 595 842 re f".to_owned(); 2])), Err(ReadError::Scan));
    for bytes in [&b"%PDF-1.4 and no more"[..], b"plain", b"", &pdf_of(&["<< /Type /Catalog >>".to_owned()])] {
        let why = read(Kind::Pdf, bytes).unwrap_err().to_string();
        assert!(why.starts_with("the file cannot be read as PDF: "), "{why}");
    }
    let locked = pdf_of(&[
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        "<< /Type /Pages /Kids [] /Count 0 >>".to_owned(),
        stream("", "x"),
    ]);
    let locked = String::from_utf8(locked).unwrap().replace(
        "/Root 1 0 R",
        &format!("/Root 1 0 R /ID [<00> <00>] /Encrypt << /Filter /Standard /V 2 /R 3 /Length 128 /P -4 /O <{0}> /U <{0}> >>", "ab".repeat(32)),
    );
    assert_eq!(read(Kind::Pdf, locked.as_bytes()), Err(ReadError::Locked));
}

#[test]
fn a_docx_is_read_under_its_headings_row_by_row() {
    let cell = |text: &str| format!("<w:tc>{}</w:tc>", paragraph("", text));
    let body = [
        paragraph("Titre", "The house"),
        paragraph("Titre1", "Boiler"),
        "<w:p><w:pPr><w:tabs><w:tab/></w:tabs></w:pPr><w:r><w:t>Its code</w:t></w:r><w:r><w:tab/><w:t>is 4711 &amp; \
         &#xe9;</w:t><w:br/><w:t>new line</w:t></w:r><w:del><w:r><w:delText>struck</w:delText></w:r></w:del>\
         <w:moveFrom><w:r><w:t>gone</w:t></w:r></w:moveFrom></w:p>"
            .to_owned(),
        paragraph("Own", "Parts"),
        format!("<w:tbl><w:tr>{}{}</w:tr><w:tr>{}{}</w:tr></w:tbl>", cell("name"), cell("price"), cell("valve"), cell("3")),
        paragraph("Titre1", "Garden"),
        "<w:p><w:r><w:t>Pears</w:t><w:pict><w:txbxContent><w:p><w:r><w:t>in a box</w:t></w:r></w:p></w:txbxContent></w:pict>\
         </w:r></w:p>"
            .to_owned(),
    ];
    let reading = read(Kind::Docx, &docx(&body.concat())).unwrap();
    let wanted = [
        ("", "The house"),
        ("Boiler", "Boiler"),
        ("Boiler", "Its code\tis 4711 & é\nnew line"),
        ("Boiler > Parts", "Parts"),
        ("Boiler > Parts", "name | price"),
        ("Boiler > Parts", "valve | 3"),
        ("Garden", "Garden"),
        ("Garden", "in a box"),
        ("Garden", "Pears"),
    ];
    assert_eq!(blocks(&reading), pairs(&wanted));
    assert_eq!(reading.title.as_deref(), Some("The house"));
    assert_eq!(read(Kind::Docx, &docx("")), Err(ReadError::NoText));
    for (bytes, why) in [
        (&b"plain"[..], "invalid Zip archive"),
        (b"\xd0\xcf\x11\xe0 old", "locked with a password"),
        (&xlsx(&[("A", "")]), "it has no word/document.xml"),
        (&docx("<w:p>"), "ill-formed"),
    ] {
        let said = read(Kind::Docx, bytes).unwrap_err().to_string();
        assert!(said.starts_with("the file cannot be read as DOCX: ") && said.contains(why), "{said}");
    }
}

#[test]
fn a_workbook_is_read_row_by_row_under_its_sheets_and_columns() {
    let prices = [
        row(1, &["name", "price", "since"]),
        row(2, &["valve", "0.30000000000000004", "day 46082"]),
        row(5, &["pump &amp; pipe", "", "day 46082.5"]),
    ];
    let file = xlsx(&[("Prices", &prices.concat()), ("Notes", &row(3, &["", "The code"])), ("Empty", "")]);
    let reading = read(Kind::Xlsx, &file).unwrap();
    let columns = "Prices > name | price | since";
    let wanted = [
        (columns, "name | price | since"),
        (columns, "valve | 0.3 | 2026-03-01"),
        (columns, "pump & pipe |  | 2026-03-01 12:00"),
        ("Notes", " | The code"),
    ];
    assert_eq!(blocks(&reading), pairs(&wanted));
    let places: Vec<_> =
        chunks(&reading).unwrap().iter().map(|c| (c.sheet.clone().unwrap(), c.row, c.row_end)).collect();
    assert_eq!(places, [("Prices".to_owned(), Some(1), Some(5)), ("Notes".to_owned(), Some(3), Some(3))]);
    assert_eq!(read(Kind::Xlsx, &xlsx(&[("Empty", "")])), Err(ReadError::NoText));
    let why = read(Kind::Xlsx, &docx("")).unwrap_err().to_string();
    assert!(why.starts_with("the file cannot be read as XLSX: "), "{why}");
}
