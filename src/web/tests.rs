//! Conversion of pages to Markdown, resolution of addresses, and detection of encodings.

mod fuzz;

use super::*;

const BASE: &str = "https://site.example/dir/page?x=1";

fn markdown(html: &str) -> String {
    page::convert(html, BASE).markdown
}

#[test]
fn html_becomes_markdown() {
    // Pages and their text, between empty lines; `⏎` is a line feed.
    let cases = include_str!("../../tests/corpus/html.txt").split("\n\n");
    for case in cases {
        let fields: Vec<String> = case.lines().map(|line| line.replace('⏎', "\n")).collect();
        assert_eq!(markdown(&fields[0]), fields[1], "{case}");
    }
}

#[test]
fn the_title_is_told_apart_and_menus_are_left_out() {
    let body = "words and more of them ".repeat(60);
    let page = format!(
        "<!doctype html><html><head><title> A\n page </title><link rel=x></head><body><nav><ul><li><a href=/>Home</a></ul></nav>\
         <div role=navigation>Breadcrumbs</div><p>{body}</p><aside>Ads</aside><footer>Imprint</footer></body></html>"
    );
    let found = page::convert(&page, BASE);
    assert_eq!(
        (found.title.as_str(), found.markdown.as_str()),
        ("A page", body.trim())
    );
    let page = format!("<div>Banner</div><main><h1>Real</h1><p>{body}</main><div>Related</div>");
    assert_eq!(markdown(&page), format!("# Real\n\n{}", body.trim()));
    let page = format!("<article>{body}</article><article>second</article>");
    assert!(
        markdown(&page).ends_with("second"),
        "two articles are both content"
    );
    assert_eq!(
        markdown("<nav><a href=/a>Only</a></nav>"),
        "[Only](https://site.example/a)",
        "there is nothing else"
    );
    let page = format!("<nav>Menu<p>{body}");
    assert!(
        markdown(&page).contains(body.trim()),
        "a menu that never ends"
    );
}

#[test]
fn thousands_of_unclosed_elements_of_each_kind_are_read_in_time() {
    let kinds = "a href=x,abbr,article,b,blockquote,button,caption,code,dd,details,div,dl,dl><dd,dt,em,footer,form,h1,li,main,nav,\
                 noscript,ol,ol start=9,ol><li><ul><li,p,pre,q,section,span,sup,svg,table,table><tr><td,tbody,td,th,tr,ul,ul><li";
    for kind in kinds.split(',') {
        let page = format!("<{kind}>x").repeat(3_000);
        let started = Instant::now();
        let text = markdown(&page);
        let took = started.elapsed();
        println!("{kind}: {took:?} {}", text.len());
        let is_read = text.contains('x') || matches!(kind, "button" | "svg");
        assert!(
            is_read && text.len() < page.len() * 40,
            "{kind}: {}",
            text.len()
        );
        // Generous, because the machine is slow when it runs all tests at the same time.
        assert!(took < Duration::from_secs(3), "{kind}: {took:?}");
    }
}

#[test]
fn links_are_resolved_as_a_browser_does() {
    // Examples and base of RFC 3986, section 5.4.
    let base = "http://a/b/c/d;p?q";
    for (link, expected) in [
        ("g", "http://a/b/c/g"),
        ("./g", "http://a/b/c/g"),
        ("g/", "http://a/b/c/g/"),
        ("/g", "http://a/g"),
        ("//g", "http://g"),
        ("?y", "http://a/b/c/d;p?y"),
        ("g?y", "http://a/b/c/g?y"),
        ("#s", "http://a/b/c/d;p?q#s"),
        ("g#s", "http://a/b/c/g#s"),
        (";x", "http://a/b/c/;x"),
        ("", "http://a/b/c/d;p?q"),
        (".", "http://a/b/c/"),
        ("./", "http://a/b/c/"),
        ("..", "http://a/b/"),
        ("../g", "http://a/b/g"),
        ("../..", "http://a/"),
        ("../../../g", "http://a/g"),
        ("/./g", "http://a/g"),
        ("g;x=1/../y", "http://a/b/c/y"),
        ("g?y/../x", "http://a/b/c/g?y/../x"),
        ("https://b/ü", "https://b/%C3%BC"),
    ] {
        assert_eq!(
            address::join(base, link).as_deref(),
            Some(expected),
            "{link}"
        );
    }
    let links = "javascript:alert(1) data:text/html,x file:///etc/passwd about:blank";
    for link in links.split_whitespace() {
        assert_eq!(address::join(base, link), None, "{link}");
    }
}

#[test]
fn addresses_are_made_fit_or_refused() {
    for (written, expected) in [
        ("example.org", "https://example.org"),
        (" HTTP://example.org/a b#part ", "http://example.org/a%20b"),
        (
            "https://de.wikipedia.org/wiki/Köln?x=%20",
            "https://de.wikipedia.org/wiki/K%C3%B6ln?x=%20",
        ),
    ] {
        assert_eq!(address::normalize(written).unwrap(), expected);
    }
    let writtens = "file:///etc/passwd gopher://h/ https://user:pw@h/ https:///x ftp://h";
    for written in writtens.split_whitespace() {
        assert!(address::normalize(written).is_err(), "{written}");
    }
}

#[test]
fn encodings_are_found_and_read() {
    let decode = |bytes: &[u8], header: &str| charset::decode(bytes, header, true);
    assert_eq!(decode("grüße".as_bytes(), ""), "grüße");
    assert_eq!(decode(b"gr\xfc\xdfe \x80", ""), "grüße €");
    assert_eq!(
        decode(b"gr\xfc\xdfe", "text/html; charset=ISO-8859-1"),
        "grüße"
    );
    assert_eq!(
        decode(b"<meta charset=\"windows-1252\">\x93x\x94", ""),
        "<meta charset=\"windows-1252\">“x”"
    );
    assert_eq!(decode(b"\xef\xbb\xbfx", "text/html; charset=latin1"), "x");
    assert_eq!(decode(b"\xff\xfea\0\xfc\0", ""), "aü");
    assert_eq!(decode(b"\xfe\xff\0a\0\xfc", ""), "aü");
    assert_eq!(decode(b"a\xffb", "text/html; charset=utf-8"), "a\u{fffd}b");
    let hello = b"\xc4\xe3\xba\xc3\xa3\xac\xca\xc0\xbd\xe7";
    assert_eq!(decode(hello, "text/html; charset=GB2312"), "你好，世界");
    let page = decode(b"<meta charset=Shift_JIS>\x93\xfa\x96{\x8c\xea", "");
    assert!(page.ends_with("日本語"), "{page}");
}
