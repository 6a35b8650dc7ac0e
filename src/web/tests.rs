//! Conversion of pages to Markdown, resolution of addresses, and detection of encodings.

mod fuzz;

use super::*;

const BASE: &str = "https://site.example/dir/page?x=1";

fn markdown(html: &str) -> String {
    page::convert(html, BASE).markdown
}

#[test]
fn html_becomes_markdown() {
    for (html, expected) in [
        ("plain text", "plain text"),
        ("<p>one</p><p>two</p>", "one\n\ntwo"),
        ("<p>one<p>two", "one\n\ntwo"),
        ("a<br>b<br/>c", "a\nb\nc"),
        (
            "<h1>Title</h1>text<h3> Sub </h3>more",
            "# Title\n\ntext\n\n### Sub\n\nmore",
        ),
        (
            "<p>  many \n\t spaces&nbsp;here </p>",
            "many spaces\u{a0}here",
        ),
        (
            "a <b>bold</b>, <em> loose </em>and <code>x &lt; y</code>",
            "a **bold**, *loose* and `x < y`",
        ),
        ("<s>old</s> new", "~~old~~ new"),
        (
            "<a href='/abs'>A</a> <a href='rel'>R</a> <a href='#f'>F</a>",
            "[A](https://site.example/abs) [R](https://site.example/dir/rel) F",
        ),
        (
            "<a href='javascript:x()'>click</a> <a href=''>empty</a> <a>none</a>",
            "click empty none",
        ),
        (
            "<a href='//cdn.example/x y'>C</a>",
            "[C](https://cdn.example/x%20y)",
        ),
        (
            "<base href='https://other.example/'><a href='p'>x</a>",
            "[x](https://other.example/p)",
        ),
        (
            "<ul><li>one<li>two<ul><li>in</ul></li><li>three</ul>after",
            "- one\n- two\n  - in\n- three\n\nafter",
        ),
        (
            "<ol start=3><li>c</li><li>d<p>more</p></li></ol>",
            "3. c\n4. d\n\n   more",
        ),
        (
            "<ol start=18446744073709551615><li>x<li>y",
            "18446744073709551615. x\n18446744073709551615. y",
        ),
        (
            "<blockquote>said<p>twice</blockquote>end",
            "> said\n>\n> twice\n\nend",
        ),
        (
            "<pre><code class='language-rust'>fn a() {\n    b();\n}\n</code></pre>x",
            "```\nfn a() {\n    b();\n}\n```\n\nx",
        ),
        (
            "<pre>\n  kept   as\nit is</pre>",
            "```\n  kept   as\nit is\n```",
        ),
        (
            "<ul><li>see<pre>a\nb</pre></ul>",
            "- see\n\n  ```\n  a\n  b\n  ```",
        ),
        (
            "<table><tr><th>a<th>b<tr><td>1|2<td><b>x</b></table>z",
            "| a | b |\n| --- | --- |\n| 1\\|2 | **x** |\n\nz",
        ),
        (
            "<table><tr><td>menu<td><p>one</p><p>two</p></table>",
            "menu\n\none\n\ntwo",
        ),
        (
            "<img src=x.png alt='A cat'><img src=y.png>",
            "![A cat](https://site.example/dir/x.png)",
        ),
        (
            "<a href=/p><img src=x alt=Pic></a>",
            "[Pic](https://site.example/p)",
        ),
        (
            "<script>var a = '<p>no</p>';</script><style>p{}</style><p>yes",
            "yes",
        ),
        (
            "<p hidden>no<p>shown<div hidden>no<div>no</div></div>yes",
            "shown\n\nyes",
        ),
        ("<svg><title>icon</title><text>no</text></svg>yes", "yes"),
        (
            "10<sup>6</sup> km<sup>2</sup>, as said<sup>[3]</sup><a href=#n><sup>4</sup></a>",
            "10^6 km^2, as said[3]4",
        ),
        (
            "<noscript><p>with <b>markup</b></p></noscript>",
            "with **markup**",
        ),
        ("<dl><dt>Term<dd>Meaning</dl>", "Term\n: Meaning"),
        ("one<hr>two", "one\n\n---\n\ntwo"),
        (
            "<div><div></div><a></a><span> </span></div>x<div></div><p></p>y",
            "x\n\ny",
        ),
        ("日本<b>語</b> مرحبا 🐓", "日本**語** مرحبا 🐓"),
        (
            "&eacute;&#233;&#x1F413;&unknown; a & b",
            "éé🐓&unknown; a & b",
        ),
        (
            "&mdash;&nbsp;&copy 2026 &AMP; &euro; &#150; &lt;b&gt;",
            "—\u{a0}© 2026 & € – <b>",
        ),
        (
            "<title>a &amp; < b</title><textarea></p></textarea>1 < 2 && 3 > 2 <3",
            "1 < 2 && 3 > 2 <3",
        ),
        (
            "<p class=x id='y z' data-a=\"&quot;\" =b/>text<!-- <p>no --><!doctype x></ bogus>more",
            "textmore",
        ),
        ("<script>if (a < b) { '</p>' }</SCRIPT >yes<style>", "yes"),
        ("<!-->a<!--->b<!-- - -- -->c", "abc"),
        ("<p>unclosed <b>bold<p>next", "unclosed **bold**\n\nnext"),
        (
            "<select><option>1</select><textarea>x</textarea><button>Go</button>left",
            "left",
        ),
    ] {
        assert_eq!(markdown(html), expected, "{html}");
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
    for link in [
        "javascript:alert(1)",
        "data:text/html,x",
        "file:///etc/passwd",
        "about:blank",
    ] {
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
    for written in [
        "file:///etc/passwd",
        "gopher://h/",
        "https://user:pw@h/",
        "https:///x",
        "ftp://h",
    ] {
        assert!(address::normalize(written).is_err(), "{written}");
    }
}

#[test]
fn encodings_are_found_and_read() {
    let decode = |bytes: &[u8], header: &str| charset::decode(bytes, header, true).unwrap();
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
}

#[test]
fn pages_in_older_encodings_are_read() {
    for (label, bytes, expected) in [
        (
            "KOI8-R",
            &b"\xf0\xd2\xc9\xd7\xc5\xd4, \xcd\xc9\xd2!"[..],
            "Привет, мир!",
        ),
        (
            "windows-1251",
            &b"\xcf\xf0\xe8\xe2\xe5\xf2, \xab\xa8\xe6\xbb \xb95"[..],
            "Привет, «Ёж» №5",
        ),
        (
            "ISO-8859-2",
            &b"\xaelu\xbbou\xe8k\xfd k\xf9\xf2"[..],
            "Žluťoučký kůň",
        ),
        ("ISO-8859-15", &b"\xbduvre \xe0 5 \xa4"[..], "œuvre à 5 €"),
        (
            "greek",
            &b"\xca\xe1\xeb\xe7\xec\xdd\xf1\xe1"[..],
            "Καλημέρα",
        ),
        ("windows-1255", &b"\xf9\xec\xe5\xed"[..], "שלום"),
        ("TIS-620", &b"\xca\xc7\xd1\xca\xb4\xd5"[..], "สวัสดี"),
        (
            "GB2312",
            &b"\xc4\xe3\xba\xc3\xa3\xac\xca\xc0\xbd\xe7"[..],
            "你好，世界",
        ),
        ("gb18030", &b"\xc4\xe3\xba\xc3"[..], "你好"),
        ("Big5", &b"\xa7A\xa6n\xa1A\xa5@\xac\xc9"[..], "你好，世界"),
        (
            "Shift_JIS",
            &b"\x93\xfa\x96{\x8c\xea \xb6\xc5 \x95\x5c\x87@"[..],
            "日本語 ｶﾅ 表①",
        ),
        (
            "EUC-KR",
            &b"\xbe\xc8\xb3\xe7\xc7\xcf\xbc\xbc\xbf\xe4 \x8cc \xf9\xd3\xed\xae"[..],
            "안녕하세요 똠 漢字",
        ),
        ("ISO-2022-JP", &b"\x1b$BF|K\\8l\x1b(B"[..], "日本語"),
    ] {
        assert_eq!(
            charset::decode(bytes, &format!("text/html; charset={label}"), true).as_deref(),
            Ok(expected),
            "{label}"
        );
        let page = [format!("<meta charset=\"{label}\">").as_bytes(), bytes].concat();
        assert!(
            charset::decode(&page, "text/html", true)
                .unwrap()
                .ends_with(expected),
            "{label}"
        );
    }
    let unknown = charset::decode("a\u{fc}".as_bytes(), "text/html; charset=HZ-GB-2312", true);
    assert_eq!(unknown, Err(("hz-gb-2312".to_owned(), "aü".to_owned())));
}

/// Each page took minutes or gigabytes without a limit. A time limit would depend on the load of the machine.
#[test]
fn repetitive_page_is_read_in_linear_time() {
    let spans = "<td colspan=20 rowspan=1000>x".repeat(1_000);
    for (page, most) in [
        ("<title>".repeat(75_000), 100),
        ("<".repeat(250_000), 1 << 18),
        ("[".repeat(500_000), 1 << 20),
        (
            format!("<table><tr>{spans}{}", "<tr><td>y".repeat(15_000)),
            1 << 20,
        ),
        (
            format!(
                "<base href='https://a.example/{}'>{}",
                "x".repeat(60_000),
                "<a href=b>c</a>".repeat(3_000)
            ),
            1 << 20,
        ),
        ("<ul><li>".repeat(100) + &"a<br>".repeat(75_000), 3 << 20),
    ] {
        let read = markdown(&page);
        let start: String = page.chars().take(40).collect();
        assert!(read.len() <= most, "{start}: {} bytes", read.len());
    }
}
