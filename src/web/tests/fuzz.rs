//! Pages of typical websites, unchanged and with random mutations.

use std::env;
use std::path::PathBuf;

use super::*;
use crate::rng::Rng;
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
const PIECES: &str = "< ¦ > ¦ </ ¦ <!-- ¦ --> ¦ <! ¦ <? ¦ & ¦ &# ¦ &#x110000; ¦ &#0; ¦ &amp ¦ \" ¦ ' ¦ = ¦ ` ¦ ``` ¦ \0 ¦ \u{feff} ¦ <table> ¦ \
    <tr> ¦ <td colspan=9999 rowspan=9999> ¦ </td> ¦ </table> ¦ <ul> ¦ <ol start=18446744073709551615> ¦ <li> ¦ </ul> ¦ \
    <a href='//[x'> ¦ </a> ¦ <pre> ¦ </pre> ¦ <title> ¦ <noscript> ¦ </noscript> ¦ <base href=x:y> ¦ <main> ¦ <article> ¦ \
    <h1> ¦ <blockquote>";

/// Mutates a page in a few places.
fn mutated(pages: &[(PathBuf, Vec<u8>)], rng: &mut Rng) -> Vec<u8> {
    let mut below = |limit: usize| usize::try_from(rng.below(limit.max(1) as u64)).unwrap();
    let mut page = pages[below(pages.len())].1.clone();
    for _ in 0..=below(12) {
        let (from, len) = (below(page.len()), below(64));
        let range = from..(from + len).min(page.len());
        match below(6) {
            0 => page[from..]
                .iter_mut()
                .take(1)
                .for_each(|byte| *byte = byte.wrapping_add(1 << (len % 8))),
            1 => drop(page.drain(range)),
            2 => {
                let pieces: Vec<&str> = PIECES.split(" ¦ ").collect();
                let piece = pieces[below(pieces.len())].repeat(1 + below(3));
                drop(page.splice(from..from, piece.into_bytes()));
            }
            3 => {
                let copy = page[range].to_vec();
                let to = below(page.len());
                drop(page.splice(to..to, copy));
            }
            4 => {
                let other = &pages[below(pages.len())].1;
                let start = below(other.len());
                drop(page.splice(
                    range,
                    other[start..(start + 200).min(other.len())].iter().copied(),
                ));
            }
            _ => page.truncate(from.max(1)),
        }
    }
    page
}

/// Runs for `BANTAM_FUZZ_SECONDS` seconds with the seed `BANTAM_FUZZ_SEED`.
#[test]
fn a_spoilt_page_is_still_read_in_bounds() {
    const LABELS: [&str; 6] = ["", "utf-8", "gbk", "big5", "shift_jis", "koi8-r"];
    let number = |name: &str| env::var(name).ok().and_then(|value| value.parse().ok());
    let seed = number("BANTAM_FUZZ_SEED").unwrap_or(0x5eed);
    let until = Instant::now() + Duration::from_secs(number("BANTAM_FUZZ_SECONDS").unwrap_or(2));
    let (pages, mut rng, mut runs) = (pages(), Rng(seed), 0_u64);
    while Instant::now() < until {
        let state = rng.0;
        let page = mutated(&pages, &mut rng);
        let label = LABELS
            .get(usize::try_from(rng.below(64)).unwrap())
            .unwrap_or(&"");
        let started = Instant::now();
        let read =
            std::panic::catch_unwind(|| read_page(&page, &format!("text/html; charset={label}")));
        let read =
            read.unwrap_or_else(|_| panic!("state {state:#x}: {}", String::from_utf8_lossy(&page)));
        assert!(
            read.markdown.len() <= 60 * page.len() + 1_000,
            "state {state:#x}: {} bytes",
            read.markdown.len()
        );
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "state {state:#x}"
        );
        assert_eq!(read.markdown, read.markdown.trim(), "state {state:#x}");
        let inside = fenced(&read.markdown);
        let line = fence(inside.trim_matches('`'));
        assert!(
            inside.is_empty() || inside.starts_with(&line) && inside.ends_with(&line),
            "state {state:#x}"
        );
        for word in String::from_utf8_lossy(&page)
            .split(['"', '\'', ' ', '>'])
            .filter(|word| !word.is_empty())
        {
            if let Some(address) = address::join("https://site.example/dir/page.html", word) {
                assert!(
                    !address.contains(|c: char| c.is_whitespace() || c.is_control()),
                    "state {state:#x}: {address:?}"
                );
            }
            drop(address::normalize(word));
        }
        drop(crate::inflate::gunzip(
            &[b"\x1f\x8b\x08\0\0\0\0\0\0\0", &page[..]].concat(),
            1 << 20,
        ));
        runs += 1;
    }
    println!("{runs} pages from seed {seed:#x}");
    assert!(runs > 10);
}
