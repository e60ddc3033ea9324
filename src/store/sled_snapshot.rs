//! What sled's snapshot says of the pages: which messages of the log each is made of. It tells of a part of the log that is
//! missing as a whole, of which the rest of the log says nothing.

use super::sled_files::Reader;

/// Pages before it hold sled's own numbers.
const FIRST_PAGE: u64 = 2;
/// Of the end of the log that the snapshot is of, bytes before anything else.
const END_BYTES: usize = 8;

/// The first page that is made of a message which is not `there`. `body`: a snapshot whose checksum holds.
pub(super) fn missing(body: &[u8], there: impl Fn(u64, i64) -> bool) -> Option<u64> {
    let mut reader = Reader::new(body, END_BYTES);
    let _segment_in_use = reader.number()?;
    for page in 0.. {
        for message in messages(&mut reader)? {
            if page >= FIRST_PAGE && !there(page, message) {
                return Some(page);
            }
        }
    }
    None
}

/// The messages of the next page; `None`: there is no further one.
fn messages(reader: &mut Reader<'_>) -> Option<Vec<i64>> {
    match reader.byte()? {
        // A page that was freed.
        0 => message(reader).map(|_| Vec::new()),
        count => (0..count)
            .map(|_| {
                let number = message(reader)?;
                reader.number().map(|_bytes| number)
            })
            .collect(),
    }
}

/// A message's number in the log, and behind it where it lies.
fn message(reader: &mut Reader<'_>) -> Option<i64> {
    let number = reader.int64()?;
    let in_blob = reader.byte()? != 0;
    reader.number()?;
    if in_blob {
        reader.int64()?;
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_names_its_messages() {
        let mut body = 9_i64.to_le_bytes().to_vec();
        body.push(1);
        // Sled's own two, one that was freed, one of a base and a change in a blob, one that is cut off.
        for (kind, all) in [(1, vec![10]), (1, vec![20]), (0, vec![30]), (2, vec![40, 50]), (3, vec![60])] {
            body.push(kind);
            for number in all {
                body.extend(i64::to_le_bytes(number));
                body.extend(if number == 50 { vec![1, 7, 0, 0, 0, 0, 0, 0, 0, 0] } else { vec![0, 7] });
                body.extend((kind > 0).then_some(5));
            }
        }
        let lacking = |gone: i64| missing(&body, |_, number| number != gone);
        assert_eq!([10, 20, 30, 40, 50, 60].map(lacking), [None, None, None, Some(3), Some(3), None]);
        for cut in 0..body.len() {
            assert_eq!(missing(&body[..cut], |_, _| true), None);
        }
    }
}
