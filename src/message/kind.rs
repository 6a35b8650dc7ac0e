//! Detects binary files by their first bytes.

/// Number of leading bytes that are inspected.
pub(crate) const START: usize = 8 << 10;

/// Kind of a binary file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BinaryKind {
    /// Name with its article: "a Word document".
    pub name: &'static str,
    /// Command that shows the contents; `{}` is the placeholder of the path.
    pub reader: &'static str,
}

/// Signatures (from the formats' specifications), names, and commands.
const SIGNATURES: [(&[u8], &str, &str); 7] = [
    (b"\x1f\x8b", "a gzip file", "zcat {} | head"),
    (b"\xfd7zXZ\0", "an xz file", "xzcat {} | head"),
    (b"BZh", "a bzip2 file", "bzcat {} | head"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file", "zstdcat {} | head"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "7z l {}"),
    (
        b"SQLite format 3\0",
        "an SQLite database",
        "sqlite3 {} .schema",
    ),
    (b"\x7fELF", "a program", "readelf -h {}"),
];

/// Strings near the start of an archive that identify a document.
const IN_ZIP: [(&str, &str, &str); 5] = [
    ("application/epub+zip", "an EPUB book", "unzip -l {}"),
    (
        "opendocument.text",
        "an OpenDocument text",
        "unzip -p {} content.xml",
    ),
    ("word/", "a Word document", "unzip -p {} word/document.xml"),
    (
        "xl/",
        "an Excel workbook",
        "unzip -p {} xl/sharedStrings.xml",
    ),
    (
        "ppt/",
        "a PowerPoint file",
        "unzip -p {} 'ppt/slides/*.xml'",
    ),
];

/// Detects the kind of a binary file: a known format, or a NUL in its first bytes. Returns `None` for text.
pub(crate) fn binary_kind(start: &[u8]) -> Option<BinaryKind> {
    let start = &start[..start.len().min(START)];
    let kind = |name, reader| Some(BinaryKind { name, reader });
    if start.starts_with(b"PK\x03\x04") {
        let holds = |word: &str| {
            start
                .windows(word.len())
                .any(|part| part == word.as_bytes())
        };
        let found = IN_ZIP.iter().find(|(word, ..)| holds(word));
        return match found {
            Some((_, name, reader)) => kind(name, reader),
            None => kind("a zip archive", "unzip -l {}"),
        };
    }
    if start.get(257..262) == Some(b"ustar") {
        return kind("a tar archive", "tar tf {}");
    }
    let signed = SIGNATURES
        .iter()
        .find(|(begins, ..)| start.starts_with(begins));
    if let Some((_, name, reader)) = signed {
        return kind(name, reader);
    }
    if start.contains(&0) {
        return kind("binary data", "xxd {} | head");
    }
    None
}

impl BinaryKind {
    /// Returns an error message with a command that shows the contents.
    pub(crate) fn refusal(self, path: &str, size: &str) -> String {
        let quoted = shell_words::quote(path);
        let reader = self.reader.replace("{}", &quoted);
        format!(
            "{path} is {} ({size}), not text; to read it: {reader}",
            self.name
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_by_how_it_begins() {
        let zip = |name: &str| [b"PK\x03\x04".as_slice(), &[0; 26], name.as_bytes()].concat();
        let tar = [[b'a'; 257].as_slice(), b"ustar\0"].concat();
        for (start, name) in [
            (zip("word/document.xml"), "a Word document"),
            (zip("xl/workbook.xml"), "an Excel workbook"),
            (zip("ppt/presentation.xml"), "a PowerPoint file"),
            (zip("mimetypeapplication/epub+zip"), "an EPUB book"),
            (
                zip("mimetypeapplication/vnd.oasis.opendocument.text"),
                "an OpenDocument text",
            ),
            (zip("a.txt"), "a zip archive"),
            (b"\x1f\x8b\x08".to_vec(), "a gzip file"),
            (b"\xfd7zXZ\0".to_vec(), "an xz file"),
            (b"BZh9".to_vec(), "a bzip2 file"),
            (b"\x28\xb5\x2f\xfd\0".to_vec(), "a Zstandard file"),
            (b"7z\xbc\xaf\x27\x1c".to_vec(), "a 7z archive"),
            (b"SQLite format 3\0".to_vec(), "an SQLite database"),
            (b"\x7fELF\x02".to_vec(), "a program"),
            (tar, "a tar archive"),
            (b"a\0b".to_vec(), "binary data"),
        ] {
            let found = binary_kind(&start).map(|kind| kind.name);
            assert_eq!(found, Some(name));
        }
        for text in ["", "one\n", "PK", "grüße", "\u{feff}a"] {
            assert_eq!(binary_kind(text.as_bytes()), None, "{text:?}");
        }
        let word = binary_kind(&zip("word/document.xml")).unwrap();
        let says = word.refusal("my a.docx", "14 KB");
        assert!(says.contains("a Word document (14 KB), not text"), "{says}");
        assert!(
            says.ends_with("unzip -p 'my a.docx' word/document.xml"),
            "{says}"
        );
    }
}
