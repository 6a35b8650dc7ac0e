//! For any Markdown, Telegram must accept the messages, and their text must be complete without duplicates.

use super::blocks;
use super::html::{Piece, pieces};
use super::split::MAX_UNITS as LIMIT;
use crate::text::is_invisible;

#[path = "../../tests/support/entities.rs"]
mod entities;
mod robust;

/// Returns the HTML of a text that fits in one message.
#[track_caller]
fn html(markdown: &str) -> String {
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
                        plain[..],
                        [parsed.text.trim()],
                        "piece {n} of {:?}",
                        shown()
                    );
                }
                assert!(plain.iter().all(|part| entities::units(part) <= LIMIT));
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

#[test]
fn markdown_becomes_html() {
    for (markdown, wanted) in [
        ("plain", "plain"),
        ("a **bold** word", "a <b>bold</b> word"),
        ("an *old* and _new_ one", "an <i>old</i> and <i>new</i> one"),
        (
            "__strong__ of __Several words__",
            "__strong__ of <b>Several words</b>",
        ),
        ("***both*** of them", "<b><i>both</i></b> of them"),
        ("**bold *and italic***", "<b>bold <i>and italic</i></b>"),
        ("*italic **and bold***", "<i>italic <b>and bold</b></i>"),
        ("~~gone~~ and ||hidden||", "<s>gone</s> and ||hidden||"),
        ("这是**粗体：**文字", "这是<b>粗体：</b>文字"),
        ("run `ls **` now", "run <code>ls **</code> now"),
        ("`` a`b ``!", "<code>a`b</code>!"),
        ("**use `x` now**", "<b>use </b><code>x</code><b> now</b>"),
        (
            "# A *b* `c`\ntext",
            "<b>A <i>b</i> </b><code>c</code>\ntext",
        ),
        ("###### Six\n####### seven", "<b>Six</b>\n####### seven"),
        (
            "> one\n> two\n\nout",
            "<blockquote>one\ntwo</blockquote>\n\nout",
        ),
        (
            "> a\n\n> b",
            "<blockquote>a</blockquote>\n\n<blockquote>b</blockquote>",
        ),
        ("> a\n> > b", "<blockquote>a\n&gt; b</blockquote>"),
        (
            "> - a\n>\n> `b`",
            "<blockquote>• a\n\n<code>b</code></blockquote>",
        ),
        (
            "> ```rs\n> x\n> ```",
            "<blockquote><pre><code class=\"language-rs\">x</code></pre></blockquote>",
        ),
        (
            "- one\n  * **two**\n+ three",
            "• one\n  • <b>two</b>\n• three",
        ),
        ("1. one\n   more\n10) ten", "1. one\n   more\n10) ten"),
        (
            "- [ ] open\n- [x] *done*\n- [link](http://h)",
            "• [ ] open\n• [x] <i>done</i>\n• <a href=\"http://h\">link</a>",
        ),
        ("a\n\n\n\nb  \nc", "a\n\nb\nc"),
        ("a\n\n---\nb", "a\n\n──────────\nb"),
        ("```\na < b\n  c\n```", "<pre>a &lt; b\n  c</pre>"),
        (
            "x\n```python title\nif a:\n    b\n```\ny",
            "x\n<pre><code class=\"language-python\">if a:\n    b</code></pre>\ny",
        ),
        ("~~~~\n```\n~~~\n~~~~", "<pre>```\n~~~</pre>"),
        (
            "- ```sh\n  ls\n  ```\n- b",
            "•\n<pre><code class=\"language-sh\">ls</code></pre>\n• b",
        ),
        ("```\"><b>\nx\n```", "<pre>x</pre>"),
        (
            "```never\nclosed",
            "<pre><code class=\"language-never\">closed</code></pre>",
        ),
        (
            "[t](https://h/a_b_c?d=1&e=\"2\")",
            "<a href=\"https://h/a_b_c?d=1&amp;e=&quot;2&quot;\">t</a>",
        ),
        ("[t](/h/a 'title')", "[t](/h/a 'title')"),
        (
            "[t](http://h/(x) \"a title\").",
            "<a href=\"http://h/(x)\">t</a>.",
        ),
        (
            "[**t** `c`](http://h)",
            "<a href=\"http://h\"><b>t</b> c</a>",
        ),
        ("**[t](http://h)**", "<a href=\"http://h\"><b>t</b></a>"),
        (
            "[a [b](http://b) c](http://c)",
            "<a href=\"http://c\">a b c</a>",
        ),
        (
            "[![alt](http://i)](http://l)",
            "<a href=\"http://l\">alt</a>",
        ),
        (
            "![alt](http://i) ![](http://j)",
            "<a href=\"http://i\">alt</a> <a href=\"http://j\">http://j</a>",
        ),
        ("[x](javascript:alert(1))", "[x](javascript:alert(1))"),
        (
            "[x](/etc/passwd) [y] (z) [w][1]",
            "[x](/etc/passwd) [y] (z) [w][1]",
        ),
        (
            "[me](tg://user?id=1) [us](mailto:a@b.c) <https://h>",
            "<a href=\"tg://user?id=1\">me</a> <a href=\"mailto:a@b.c\">us</a> &lt;https://h&gt;",
        ),
        (
            "<b>bold</b> &amp; <script>",
            "&lt;b&gt;bold&lt;/b&gt; &amp; &lt;script&gt;",
        ),
        (
            "\\*not\\* \\_this\\_ \\`or\\` \\<",
            "*not* _this_ `or` &lt;",
        ),
        (
            "\\(x\\,dx\\) and\n\\[ a\\;b \\]",
            "\\(x\\,dx\\) and\n\\[ a\\;b \\]",
        ),
        ("C:\\dir a\\d", "C:\\dir a\\d"),
        ("**open\n\nclose**", "**open\n\nclose**"),
        (
            "see https://h/_x_/y_z_* and **https://h**",
            "see https://h/_x_/y_z_* and <b>https://h</b>",
        ),
        ("a\0b\r\n\x1b[1mc", "ab\n[1mc"),
    ] {
        assert_eq!(html(markdown), wanted, "{markdown:?}");
    }
}

#[test]
fn plain_text_is_not_formatted() {
    for text in [
        "snake_case_name and __init__ and _private_name",
        "2*3*4 = 24, 2 * 3 * 4, 2**3, 2**3**4",
        "*.rs and *.toml, src/**/*.rs and tests/**/*.py",
        "f(*args, **kwargs)",
        "an open **bold and `code and *so on and ~~this and ||that",
        "a || b || c, x||y||z, a ~ b, ~5 and ~6",
        "a ~~~b~~~ c",
        "#hashtag",
        "-5 degrees\n--flag\n+1",
        "** ** * * __ __ **** ____ ~~~~~ |||||",
        "``inline``` here",
        "]( [ ]( [](",
        "[text]( [text](http://h",
        "1986.A year\n3.14",
        "a | b\nc | d",
        "path_/_to_x /usr/_x_/y",
        "!",
        "[",
        "*",
        "\\",
    ] {
        assert_eq!(checked(text)[0].plain, [text]);
        assert!(!html(text).contains('<'), "{text:?}");
    }
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
        assert_eq!(checked(markdown)[0].plain, [plain], "{markdown}");
    }
    // With its addresses, a text may need several messages.
    let links = "[a](http://h/abc) ".repeat(90);
    let pieces = checked(&format!("{} {links}", "word ".repeat(700)));
    let parts: Vec<&String> = pieces.iter().flat_map(|piece| &piece.plain).collect();
    assert!(parts.len() > pieces.len());
    let whole = |part: &&String| part.matches("a (http://h/abc)").count();
    assert_eq!(parts.iter().map(whole).sum::<usize>(), 90);
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
        assert_eq!(over[0].plain, [text.repeat(most)]);
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
            .map(|piece| piece.plain.concat())
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
    let sentences = "This is a sentence of some length. ".repeat(300);
    assert!(
        ends(&sentences)
            .iter()
            .all(|piece| piece.starts_with("This") && piece.ends_with("length."))
    );
    assert!(
        ends(&"これは文です。".repeat(2000))
            .iter()
            .all(|piece| piece.ends_with('。'))
    );
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
                let rest = piece.plain[0].trim_start_matches('x').len();
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
    let page = "# T\n\none `a\nb` two\nthree\n\n    code\n    more\n- item\n  goes on\n- next\n\n```\nx\ny\n```\nafter\nit\n| a |\n| b |\n<!-- x -->\nlast";
    let filled = "# T\n\none `a b` two three\n\n    code\n    more\n- item goes on\n- next\n\n```\nx\ny\n```\nafter it\n| a |\n| b |\n<!-- x -->\nlast\n";
    assert_eq!(blocks::refilled(page), filled);
}
