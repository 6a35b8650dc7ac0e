//! For any Markdown, Telegram must accept the messages, and their text must be complete without duplicates.

use super::blocks;
use super::html::{Piece, pieces};
use super::split::MAX_UNITS as LIMIT;
use super::terminal::Terminal;
use crate::text::is_invisible;

mod answers;
#[path = "../../tests/support/entities.rs"]
mod entities;
mod robust;

/// Returns the HTML of a text that fits in one message.
#[track_caller]
pub(super) fn html(markdown: &str) -> String {
    let mut pieces = checked(markdown);
    assert!(
        pieces.len() < 2,
        "{markdown:?} became {} pieces",
        pieces.len()
    );
    pieces.pop().map_or(String::new(), |piece| piece.html)
}

/// Returns the pieces, after checking all general properties.
#[track_caller]
fn checked(markdown: &str) -> Vec<Piece> {
    let pieces = pieces(markdown);
    let shown = || markdown.chars().take(3000).collect::<String>();
    let mut joined = String::new();
    for (n, Piece { html, plain }) in pieces.iter().enumerate() {
        match entities::strict(html) {
            Ok(parsed) => {
                let has_links = parsed.entities.iter().any(|entity| entity.tag == "a");
                if !has_links {
                    assert_eq!(
                        plain.trim(),
                        parsed.text.trim(),
                        "piece {n} of {:?}",
                        shown()
                    );
                }
                joined.push_str(&parsed.text);
            }
            Err(error) => panic!("piece {n}: {error}\n{html}\n== of ==\n{:?}", shown()),
        }
    }
    let solid = |text: &str| {
        text.chars()
            .filter(|c| !is_invisible(*c))
            .collect::<String>()
    };
    let (is, should) = (solid(&joined), solid(&blocks::parse(markdown).text));
    assert!(
        is == should,
        "text lost or doubled in {:?}\n{is}\n{should}",
        shown()
    );
    pieces
}

/// Returns the terminal output for a text in pieces of this size.
fn render_pieces(text: &str, columns: usize, size: usize) -> String {
    let mut terminal = Terminal::new(columns);
    let characters: Vec<char> = text.chars().collect();
    let pieces = characters.chunks(size);
    let shown = pieces.map(|piece| terminal.push(&piece.iter().collect::<String>()));
    shown.collect::<String>() + &terminal.finish()
}

#[test]
fn without_styles_every_link_has_its_address() {
    for (markdown, plain) in [
        ("[**t** `c`](http://h).", "t c (http://h)."),
        ("![](http://j) and <http://k>", "http://j and <http://k>"),
        ("> [a](http://a)[b](http://b)", "a (http://a)b (http://b)"),
        ("1. **[x](http://h)** y", "1. x (http://h) y"),
        ("`[t](http://h)`", "[t](http://h)"),
    ] {
        assert_eq!(checked(markdown)[0].plain, plain, "{markdown}");
    }
}

/// The server refuses a message whose entities take more than about 9,500 bytes with their addresses (`ENTITIES_TOO_LONG`).
#[test]
fn ninety_long_links_arrive_whole() {
    let long = |n: usize| format!("http://h.example/{n}/{}", "x".repeat(300));
    for (before, after) in [("- ", "\n"), ("", " "), ("> **", "**, ")] {
        let source = |n| format!("{before}[page {n}]({}){after}", long(n));
        let text: String = (0..90).map(source).collect();
        let pieces = checked(&text);
        for Piece { html, .. } in &pieces {
            let parsed = entities::strict(html).unwrap();
            let bytes = html.matches("http").count() * long(0).len();
            assert!(parsed.entities.len() <= 100 && bytes < 9_000, "{html}");
        }
        let is_whole = |n: &usize| {
            let link = format!("<a href=\"{}\">", long(*n));
            pieces.iter().any(|piece| piece.html.contains(&link))
        };
        assert_eq!((0..90).filter(is_whole).count(), 90, "{before}");
    }
}

#[test]
fn white_space_and_what_nobody_sees_give_no_message() {
    for text in [
        "",
        " ",
        "\n\n\t \n",
        "\u{200b}\u{2060}",
        "```\n\n```",
        "\0",
        "> \n>\n",
        "\u{a0}\u{3000}",
        "****\u{0}\n".trim_matches('*'),
    ] {
        let pieces = pieces(text);
        assert!(pieces.is_empty(), "{text:?} gave {pieces:?}");
    }
}

#[test]
fn tables_stand_in_columns() {
    let table = "| 名前 | n | **link** |\n|---|--:|:-:|\n| 日本語 | 5 | [h](http://h) |\n| a\\|b | 1000 | `x` | more |\nafter";
    let wanted = "<pre>\
        名前   │ n    │ link\n\
        ───────┼──────┼──────────────┼─────\n\
        日本語 │ 5    │ h (http://h)\n\
        a|b    │ 1000 │ x            │ more</pre>\nafter";
    assert_eq!(
        html(table).replace(['─', '┼'], ""),
        wanted.replace(['─', '┼'], "")
    );
    assert!(html(table).contains("───────┼──────┼"));
    assert_eq!(html("|a|\n|-|\n|👍🏽|"), "<pre>a\n──\n👍🏽</pre>");
    // One long cell does not widen its column above the maximum, and cells are not truncated.
    let wide = format!("a|b\n-|-\n{}|1\nc|2", "x".repeat(90));
    assert!(html(&wide).contains(&format!("{} │ 1\nc{} │ 2", "x".repeat(90), " ".repeat(39))));
}

#[test]
fn a_piece_is_as_long_as_a_message_may_be() {
    for (text, count) in [
        ("x", 1),
        ("語", 1),
        ("👍", 2),
        ("<", 1),
        ("&", 1),
        ("\"", 1),
        ("é", 1),
    ] {
        let most = LIMIT / count;
        assert_eq!(checked(&text.repeat(most)).len(), 1, "{text}");
        let over = checked(&text.repeat(most + 1));
        assert_eq!(over.len(), 2, "{text}");
        assert_eq!(over[0].plain, text.repeat(most));
    }
    // Tags and trailing white space do not count.
    assert_eq!(
        checked(&format!(
            "**{}** {}  \n\n",
            "y".repeat(400),
            "y".repeat(LIMIT - 401)
        ))
        .len(),
        1
    );
}

#[test]
fn cuts_are_where_a_reader_would_make_them() {
    let words = "word ".repeat(200);
    let paragraph = words.trim();
    let ends = |text: &str| {
        checked(text)
            .iter()
            .map(|piece| piece.plain.clone())
            .collect::<Vec<_>>()
    };
    let whole = |piece: &String, part: &str| piece.split(part).all(|rest| rest.trim().is_empty());
    for (separator, part) in [("\n\n", paragraph), ("\n", paragraph)] {
        let pieces = ends(&[paragraph; 9].join(separator));
        assert!(
            pieces.len() == 3 && pieces.iter().all(|piece| whole(piece, part)),
            "{pieces:?}"
        );
    }
    assert!(
        ends(&"lorem ".repeat(2000))
            .iter()
            .all(|piece| whole(piece, "lorem"))
    );
    // A paragraph does not force a tiny piece.
    assert!(ends(&format!("Hi.\n\n{}", "語".repeat(6000)))[0].len() > 10_000);
}

#[test]
fn code_is_closed_and_opened_again_with_its_language() {
    let line = "    let x = vec![1, 2, 3]; // <&>\n";
    let code = format!("Here:\n```rust\n{}```\n**done**", line.repeat(600));
    let pieces = checked(&code);
    assert!(pieces.len() > 4);
    for (n, piece) in pieces.iter().enumerate() {
        let inside = piece
            .html
            .strip_prefix(if n == 0 { "Here:\n" } else { "" })
            .unwrap();
        assert!(
            inside.starts_with("<pre><code class=\"language-rust\">    let"),
            "{}",
            &inside[..60]
        );
        assert!(inside.contains("// &lt;&amp;&gt;</code></pre>"));
    }
    assert!(
        pieces
            .last()
            .unwrap()
            .html
            .ends_with("</code></pre>\n<b>done</b>")
    );
}

#[test]
fn characters_stay_whole_wherever_a_piece_ends() {
    let clusters = [
        "👨‍👩‍👧‍👦",
        "👍🏽",
        "e\u{301}\u{327}",
        "🏳️‍🌈",
        "한",
        "\u{1112}\u{1161}\u{11ab}",
        "1\u{fe0f}\u{20e3}",
        "שָׁ",
        "ก็",
    ];
    for cluster in clusters {
        let length = cluster.encode_utf16().count();
        for shift in 0..length {
            let text = format!(
                "{}{}",
                "x".repeat(shift),
                cluster.repeat(LIMIT / length + 3)
            );
            for piece in checked(&text) {
                let rest = piece.plain.trim_start_matches('x').len();
                assert_eq!(rest % cluster.len(), 0, "{cluster} was cut");
            }
        }
    }
    // A grapheme that is too long for a message is split, but never within a surrogate pair.
    assert_eq!(checked(&format!("a{}", "\u{301}".repeat(5000))).len(), 2);
    assert_eq!(checked(&"😀\u{200d}".repeat(3000)).len(), 3);
}

#[test]
fn a_paragraph_becomes_one_line_and_code_stays() {
    let page = "# T\n\none `a\nb` two\nthree\n\n    code\n    more\n- item\n  goes on\n- next\n\n```\nx\ny\n```\nafter\nit\n| a |\n| b |\nlast";
    let filled = "# T\n\none `a b` two three\n\n    code\n    more\n- item goes on\n- next\n\n```\nx\ny\n```\nafter it\n| a |\n| b |\nlast\n";
    assert_eq!(blocks::refilled(page), filled);
}
