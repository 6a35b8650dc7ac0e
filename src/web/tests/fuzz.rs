//! Pages of typical websites, unchanged and with random mutations.

use std::env;
use std::path::PathBuf;

use super::*;
use crate::rng::{below, fuzz};
use crate::text::{fence, fenced};

/// Returns the pages in `tests/pages` with their paths.
fn pages() -> Vec<(PathBuf, Vec<u8>)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/pages");
    let paths = fs_err::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut pages: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|end| end == "html"))
        .collect();
    pages.sort();
    pages
        .into_iter()
        .map(|path| (path.clone(), fs_err::read(path).unwrap()))
        .collect()
}

fn read_page(bytes: &[u8], header: &str) -> page::Converted {
    let text = charset::decode(bytes, header, true);
    page::convert(&text, "https://site.example/dir/page.html")
}

/// Losses that were accepted, because they took more code than they were worth to a reader: the addresses of frames and
/// embedded pages (frames, iframes), the ticks of checkboxes (readme, recipe), links that have a label and no text, the
/// addresses of images that only have a `srcset` (pictures), and cells that span several columns or rows, or contain a table
/// (tables, nested-tables). No page here has the language of a code block, or an image of one pixel with a description; the
/// first is lost, the second is shown.
///
/// `BANTAM_BLESS=1` rewrites the expected output; review the difference.
#[test]
fn pages_shaped_like_the_web_lose_nothing_readable() {
    let pages = pages();
    assert!(pages.len() >= 30);
    for (path, bytes) in pages {
        let page = read_page(&bytes, "text/html");
        let found = format!("{}\n\n{}\n", page.title, page.markdown);
        let expected = path.with_extension("md");
        if env::var_os("BANTAM_BLESS").is_some() {
            std::fs::write(&expected, &found).unwrap();
        }
        assert_eq!(
            found,
            std::fs::read_to_string(&expected).unwrap(),
            "{}",
            path.display()
        );
    }
}

/// Sequences that are likely to break a parser.
const PIECES: &str = "<¦>¦</¦<!--¦-->¦<!¦<?¦&¦&#¦&#x110000;¦&#0;¦&amp¦\"¦'¦=¦`¦```¦\0¦\u{feff}¦<table>¦\
    <tr>¦<td colspan=9999 rowspan=9999>¦</td>¦</table>¦<ul>¦<ol start=18446744073709551615>¦<li>¦</ul>¦\
    <a href='//[x'>¦</a>¦<pre>¦</pre>¦<title>¦<noscript>¦</noscript>¦<base href=x:y>¦<main>¦<article>¦\
    <h1>¦<blockquote>";

#[test]
fn a_spoilt_page_is_still_read_in_bounds() {
    const LABELS: [&str; 6] = ["", "utf-8", "gbk", "big5", "shift_jis", "koi8-r"];
    let pages: Vec<Vec<u8>> = pages().into_iter().map(|(_, page)| page).collect();
    fuzz(&pages, PIECES, |page, chance| {
        let label = LABELS.get(below(chance, 64)).unwrap_or(&"");
        let started = Instant::now();
        let read = read_page(page, &format!("text/html; charset={label}"));
        assert!(read.markdown.len() <= 60 * page.len() + 1_000);
        assert!(started.elapsed() < Duration::from_secs(60));
        assert_eq!(read.markdown, read.markdown.trim());
        let inside = fenced(&read.markdown);
        let line = fence(inside.trim_matches('`'));
        assert!(inside.is_empty() || inside.starts_with(&line) && inside.ends_with(&line));
        for word in String::from_utf8_lossy(page)
            .split(['"', '\'', ' ', '>'])
            .filter(|word| !word.is_empty())
        {
            if let Some(address) = address::join("https://site.example/dir/page.html", word) {
                assert!(!address.contains(|c: char| c.is_whitespace() || c.is_control()));
            }
            drop(address::normalize(word));
        }
        let packed = [b"\x1f\x8b\x08\0\0\0\0\0\0\0", page].concat();
        drop(crate::inflate::gunzip(&packed, 1 << 20));
    });
}
