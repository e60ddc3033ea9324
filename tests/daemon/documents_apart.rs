//! PDF, DOCX and XLSX through the daemon: read in a process apart, found and shown at their pages, headings and rows. A
//! hostile file costs itself: an error that says what was wrong, nothing left behind, and the daemon goes on.

use std::fs;
use std::io::Write;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde_json::{Value, json};

use crate::harness::Daemon;
use crate::people::{told, toward};
use crate::samples::{archive, docx, paragraph, pdf, pdf_drawn, pdf_of, row, stream, xlsx};

async fn add(daemon: &Daemon, name: &str, bytes: &[u8]) -> (u16, Value) {
    daemon.post("/v1/documents", &json!({"name": name, "base64": STANDARD.encode(bytes)})).await
}

#[tokio::test]
async fn what_office_programs_write_is_found_and_shown_at_its_place() {
    let daemon = Daemon::start(&[]).await;
    let papers = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: Vec<u8>| fs::write(papers.path().join(name), bytes).unwrap();
    write("boiler.pdf", pdf(&["How to begin.", "The code of the boiler is 4711."]));
    let rules = [paragraph("Titre1", "Cellar"), paragraph("Titre2", "Key"), paragraph("", "It hangs behind the door.")];
    write("rules.docx", docx(&rules.concat()));
    let people = [row(1, &["name", "phone"]), row(2, &["Noor, plumber", "555-01"])];
    write("people.xlsx", xlsx(&[("Calendar", ""), ("Phone numbers", &people.concat())]));
    let added = told(&daemon, &["documents", "add", papers.path().to_str().unwrap()], "");
    assert_eq!(added.lines().count(), 3, "{added}");
    for (question, place, url) in [
        ("code of the boiler", "boiler.pdf, page 2", "#page=2"),
        ("where hangs the key", "rules.docx, lines 3 to 5, Cellar > Key", "#L3"),
        (
            "phone of the plumber",
            "people.xlsx, sheet Phone numbers, rows 1 to 2, Phone numbers > name | phone",
            "#sheet=Phone%20numbers&row=1",
        ),
    ] {
        let found = told(&daemon, &["documents", "search", "-k", "1", question], "");
        assert!(found.contains(place), "{place}: {found}");
        let body = json!({"messages": [{"role": "user", "content": question}], "max_tokens": 4,
            "chimere": {"documents": {"k": 1}}});
        let (status, reply) = daemon.post("/v1/chat/completions", &body).await;
        let source = &reply["x_chimere"]["sources"][0];
        assert!(status == 200 && source["url"].as_str().unwrap().ends_with(url), "{source}");
    }
    let shown = toward(&daemon, "").args(["chat", "--documents", "phone of the plumber"]).output().unwrap();
    assert!(
        String::from_utf8_lossy(&shown.stderr).contains("[1] people.xlsx, sheet Phone numbers, row 1"),
        "{shown:?}"
    );
    let list: Value = serde_json::from_str(&told(&daemon, &["documents", "list", "--json"], "")).unwrap();
    for document in list.as_array().unwrap() {
        told(&daemon, &["documents", "remove", document["id"].as_str().unwrap()], "");
    }
    for question in ["code of the boiler", "where hangs the key", "phone of the plumber"] {
        assert_eq!(told(&daemon, &["documents", "search", question], ""), "");
    }
    // A page that fails is named; a scan says what it is.
    let good = "BT /F 12 Tf 72 700 Td (Pears ripen late.) Tj ET".to_owned();
    let (_, half) = add(&daemon, "half.pdf", &pdf_drawn(&[good, "BT (lost) Tj ET".to_owned()])).await;
    assert_eq!((&half["unread_pages"], &half["passages"]), (&json!([2]), &json!(1)), "{half}");
    let listed = told(&daemon, &["documents", "list"], "");
    assert!(listed.contains("1 passages  (without page 2: unreadable)"), "{listed}");
    let (status, scan) = add(&daemon, "scan.pdf", &pdf_drawn(&["0 0 595 842 re f".to_owned()])).await;
    let why = scan["error"]["message"].as_str().unwrap();
    assert!(status == 400 && why.starts_with("the file has no text: it may be a scan"), "{why}");
    // What is sent as text is text under any name.
    let (status, text) = daemon.post("/v1/documents", &json!({"name": "a.pdf", "text": "Pears."})).await;
    assert_eq!((status, &text["media_type"]), (200, &json!("text/plain")), "{text}");
}

/// So many bytes of one kind, compressed.
fn squeezed(byte: u8, mib: usize) -> Vec<u8> {
    let mut out = ZlibEncoder::new(Vec::new(), Compression::fast());
    let block = vec![byte; 1 << 20];
    (0..mib).for_each(|_| out.write_all(&block).unwrap());
    out.finish().unwrap()
}

/// A PDF whose page is this object, in a stream of these entries.
fn pdf_with(entries: &str, content: &[u8], others: &[String]) -> Vec<u8> {
    let head = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R /Resources << /XObject << /X 5 0 R >> >> >>",
    ];
    let open = format!("<< {entries} /Length {} >>\nstream\n", content.len()).into_bytes();
    let drawn = [&open, content, b"\nendstream"].concat();
    let objects = head.iter().map(|object| object.as_bytes()).chain([drawn.as_slice()]);
    let (mut out, mut places) = (b"%PDF-1.4\n".to_vec(), Vec::new());
    for (number, object) in (1..).zip(objects.chain(others.iter().map(String::as_bytes))) {
        places.push(out.len());
        out.extend([format!("{number} 0 obj\n").as_bytes(), object, b"\nendobj\n"].concat());
    }
    let (xref, count) = (out.len(), places.len() + 1);
    out.extend(format!("xref\n0 {count}\n0000000000 65535 f \n").bytes());
    places.iter().for_each(|place| out.extend(format!("{place:010} 00000 n \n").bytes()));
    out.extend(format!("trailer\n<< /Size {count} /Root 1 0 R >>\nstartxref\n{xref}\n%%EOF\n").bytes());
    out
}

/// A form that draws the next one so many times, and the last one nothing.
fn laughs(depth: usize, times: usize) -> Vec<String> {
    let form = |n: usize| {
        let next = format!("/Resources << /XObject << /X {} 0 R >> >>", n + 6);
        let content = if n + 1 < depth { "/X Do ".repeat(times) } else { String::new() };
        stream(&format!("/Type /XObject /Subtype /Form /BBox [0 0 9 9] {next}"), &content)
    };
    (0..depth).map(form).collect()
}

/// Declares that a part of an archive unpacks to so many bytes, in both of its headers.
fn lie(mut archive: Vec<u8>, part: &str, bytes: u32) -> Vec<u8> {
    for (mark, size_at, name_at) in [(b"PK\x03\x04", 22, 30), (b"PK\x01\x02", 24, 46)] {
        let begins = |at: &usize| {
            archive[*at..].starts_with(mark)
                && archive.get(at + name_at..).is_some_and(|n| n.starts_with(part.as_bytes()))
        };
        let at = (0..archive.len()).find(begins).unwrap();
        archive[at + size_at..at + size_at + 4].copy_from_slice(&bytes.to_le_bytes());
    }
    archive
}

#[tokio::test]
async fn a_hostile_file_costs_itself_alone() {
    let daemon = Daemon::start(&[]).await;
    const BODY: &str = "word/document.xml";
    const BOOK: &str = concat!(
        r#"<Relationships><Relationship Id="r1" Target="xl/workbook.xml" "#,
        r#"Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"/></Relationships>"#
    );
    let spaces = vec![b' '; 520 << 20];
    let bomb = archive(&[(BODY, &spaces)]);
    drop(spaces);
    let turning = "<< /Type /Pages /Kids [2 0 R] /Count 1 >>".to_owned();
    let strings = archive(&[
        ("xl/workbook.xml", b"<workbook><sheets/></workbook>"),
        ("xl/_rels/workbook.xml.rels", b"<Relationships/>"),
        ("_rels/.rels", BOOK.as_bytes()),
        ("xl/sharedStrings.xml", b"<sst uniqueCount=\"999999999999999\"></sst>"),
    ]);
    let form = "/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /X 5 0 R >> >>";
    let files: Vec<(&str, Vec<u8>, &str)> = vec![
        ("bomb.docx", bomb.clone(), "unpacks to more than 512 MiB"),
        ("lie.docx", lie(bomb, BODY, 10), "larger than its declared uncompressed size"),
        ("tall.docx", lie(docx("x"), BODY, u32::MAX - 1), "unpacks to more than 512 MiB"),
        ("deep.docx", docx(&"<w:p>".repeat(100_000)), "cannot be read as DOCX"),
        ("strings.xlsx", strings, "more memory than a reader gets"),
        ("self.pdf", pdf_with("", b"/X Do", &[stream(form, "/X Do")]), "nested too deep"),
        ("turning.pdf", pdf_of(&["<< /Type /Catalog /Pages 2 0 R >>".to_owned(), turning]), "cannot be read as PDF"),
        ("bomb.pdf", pdf_with("/Filter /FlateDecode", &squeezed(b' ', 1_500), &[]), "more memory than a reader gets"),
        ("short.pdf", pdf(&["words"])[..200].to_vec(), "cannot be read as PDF"),
        ("arrays.pdf", pdf_with("", "[".repeat(2 << 20).as_bytes(), &[]), ""),
    ];
    for (name, bytes, wanted) in files {
        let (status, error) = add(&daemon, name, &bytes).await;
        let why = error["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && why.contains(wanted), "{name}: {status} {why}");
    }
    // One that computes without end is ended, and nobody waits for it meanwhile.
    let endless = pdf_with("", b"/X Do", &laughs(30, 16));
    let (url, body) =
        (format!("{}/v1/documents", daemon.url), json!({"name": "endless.pdf", "base64": STANDARD.encode(endless)}));
    let waiting = tokio::spawn(async move { reqwest::Client::new().post(url).json(&body).send().await.unwrap() });
    while daemon.readers().is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(add(&daemon, "plain.pdf", &pdf(&["The code of the boiler is 4711."])).await.0, 200);
    assert_eq!((daemon.get("/health").await.0, daemon.readers().len()), (200, 1));
    let answer = waiting.await.unwrap();
    let (status, error) = (answer.status(), answer.json::<Value>().await.unwrap());
    let why = error["error"]["message"].as_str().unwrap();
    assert!(status == 400 && why.contains("it takes more than 30 s of computing"), "{why}");
    // The good one is there alone, and is found.
    assert!(daemon.readers().is_empty());
    let list: Value = serde_json::from_str(&told(&daemon, &["documents", "list", "--json"], "")).unwrap();
    assert_eq!((list.as_array().unwrap().len(), &list[0]["name"]), (1, &json!("plain.pdf")));
    assert!(told(&daemon, &["documents", "search", "boiler"], "").contains("plain.pdf, page 1"));
    let kept = fs::read_dir(daemon.state.path().join("documents")).unwrap().count();
    assert!(kept <= 3, "{kept} files: a document, its vectors, the list of collections");
}
