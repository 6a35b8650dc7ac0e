//! Reading PDFs with `pdftotext`.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Home, has_all, has_none};
use crate::heavy::raw;
use crate::model::{Model, Reply};
use crate::pdf::{of_objects, pdf, with_pages};

#[test]
fn pdf_is_sent_as_text_on_refusal() {
    let refusal = Reply::error(
        400,
        "messages[1]: unknown variant `file`, expected `text` or `image_url`",
    );
    let (model, home) = Home::of(Model::scripted([
        Reply::text("Tomatoes."),
        refusal,
        Reply::text("Tuesday."),
        Reply::text("Yes."),
    ]));
    let file = home.write("plan.pdf", pdf());
    let ask = |args: &[&str]| {
        home.bantam()
            .args(["agent", "--new", "-m", "what?", "-a"])
            .arg(&file)
            .args(args)
            .run()
    };
    ask(&[]).answers("Tomatoes.\n");
    let part = model.request(0).messages()[1]["content"][1].clone();
    assert_eq!(part["type"], "file");
    assert!(
        part["file"]["file_data"]
            .as_str()
            .unwrap()
            .starts_with("data:application/pdf;base64,JVBERi0"),
        "{part}"
    );
    ask(&["-v"])
        .answers("Tuesday.\n")
        .says("does not support PDF files");
    for request in [model.request(2), {
        ask(&[]).exits(0).does_not_say("asked without");
        model.request(3)
    }] {
        let user = request.last("user");
        has_all(
            &user,
            [
                "[the text of a PDF]\n```\n[a PDF; here are pages 1 to 1]\n[page 1]\nTomatoes on Tuesday\n```",
            ],
        );
    }
}

/// Returns the result of `read_file` with these arguments for a file of the workspace.
#[track_caller]
fn read(home: &Home, model: &Model, args: &Value) -> String {
    let asked = model.asked();
    let question = json!({ "read": args }).to_string();
    home.run(["agent", "--new", "-m", &question]).exits(0);
    model.request(asked + 1).texts("tool").pop().unwrap()
}

/// Returns a model that calls `read_file`, or another tool, as requested.
fn reader() -> Model {
    Model::answering(|request, _| {
        let asked = request.last("user");
        let Some(start) = asked
            .find("{\"read\"")
            .filter(|_| request.texts("tool").is_empty())
        else {
            return Reply::text("Read.");
        };
        let mut values = serde_json::Deserializer::from_str(&asked[start..]).into_iter::<Value>();
        let args = values.next().unwrap().unwrap()["read"].clone();
        let tool = if args["url"].is_string() {
            "web_fetch"
        } else {
            "read_file"
        };
        Reply::call(tool, &args)
    })
}

/// Returns a page of some kilobytes with its number.
fn page(number: usize) -> String {
    let mut lines = String::new();
    for line in 0..40 {
        lines.push_str(&format!(
            "page{number} line{line} of many words that fill it\n"
        ));
    }
    lines
}

fn long() -> Vec<u8> {
    with_pages(&(1..=120).map(page).collect::<Vec<_>>())
}

#[test]
fn long_pdf_is_read_page_by_page() {
    let model = reader();
    let home = Home::with(&model.config());
    home.write("workspace/long.pdf", long());
    let (mut pages, mut all) = (String::new(), String::new());
    for part in 0.. {
        assert!(part < 40, "it does not end");
        let text = read(
            &home,
            &model,
            &json!({ "path": "long.pdf", "pages": pages }),
        );
        assert!(text.starts_with("[a PDF; here are pages "), "{text}");
        all.push_str(&text);
        let Some((_, more)) = text.rsplit_once("there is more: pages ") else {
            break;
        };
        pages = more.trim_end().trim_end_matches(']').to_owned();
    }
    for number in 1..=120 {
        assert_eq!(
            all.matches(&format!("page{number} line39 ")).count(),
            1,
            "{number}"
        );
    }
    let text = read(
        &home,
        &model,
        &json!({ "path": "long.pdf", "pages": "119-400" }),
    );
    has_all(
        &text,
        ["here are pages 119 to 120]\n[page 119]\npage119 line0 "],
    );
    assert!(!text.contains("there is more"), "{text}");
    let text = read(
        &home,
        &model,
        &json!({ "path": "long.pdf", "pages": "121" }),
    );
    assert!(text.contains("no page 121"), "{text}");
}

#[test]
fn a_pdf_from_the_web_is_read_page_by_page_too() {
    let model = reader();
    let open = json!({ "tools": { "web": { "fetch": { "allow_private": true } } } });
    let home = Home::asking(&model, &open);
    let file = long();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: application/pdf\r\nContent-Length";
    let head = format!("{head}: {}\r\n\r\n", file.len());
    let url = raw([head.into_bytes(), file].concat());
    let text = read(&home, &model, &json!({ "url": url, "max_chars": 5000 }));
    has_all(&text, ["[a PDF; here are pages 1 to 3]\n[page 1]\npage1 "]);
    assert!(text.contains("[there is more: pages 4-]"), "{text}");
    let text = read(&home, &model, &json!({ "url": url, "pages": "120" }));
    has_all(&text, ["[page 120]\npage120 line0 "]);
    has_none(&text, ["more"]);
}

/// Returns a PDF of one page with this content, and further objects from the fourth on.
fn make_page(content: &[u8], filter: &str, more: &[&str], page: &str) -> Vec<u8> {
    let stream = [
        format!("<</Length {}{filter}>>\nstream\n", content.len()).into_bytes(),
        content.to_vec(),
        b"\nendstream".to_vec(),
    ]
    .concat();
    let mut objects = vec![
        b"<</Type/Catalog/Pages 2 0 R/OpenAction 5 0 R>>".to_vec(),
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>".to_vec(),
        format!("<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R{page}>>")
            .into_bytes(),
        stream,
    ];
    objects.extend(more.iter().map(|object| object.as_bytes().to_vec()));
    of_objects(&objects, "")
}

#[test]
fn a_scan_an_encrypted_and_a_broken_pdf_are_called_that() {
    let model = reader();
    let home = Home::with(&model.config());
    let encrypted = {
        let key = "0123456789abcdef0123456789abcdef";
        let objects = [
            b"<</Type/Catalog/Pages 2 0 R>>".to_vec(),
            b"<</Type/Pages/Kids[]/Count 0>>".to_vec(),
            format!("<</Filter/Standard/V 1/R 2/O({key})/U({key})/P -4>>").into_bytes(),
        ];
        of_objects(&objects, "/Encrypt 3 0 R/ID[<00><00>]")
    };
    for (name, file, says) in [
        (
            "scan.pdf",
            with_pages(&["", ""]),
            "pages 1 to 2 without text",
        ),
        ("secret.pdf", encrypted, "broken or encrypted"),
        (
            "cut.pdf",
            b"%PDF-1.4\nnothing but letters\n".to_vec(),
            "broken or encrypted",
        ),
    ] {
        home.write(&format!("workspace/{name}"), file);
        let text = read(&home, &model, &json!({ "path": name }));
        assert!(text.contains(says), "{name}: {text}");
        assert!(!text.contains("%PDF"), "{name}: {text}");
    }
}

/// Compresses zeros, or other bytes, this many times.
fn packed(bytes: &[u8], times: usize) -> Vec<u8> {
    (0..times).fold(bytes.to_vec(), |bytes, _| {
        miniz_oxide::deflate::compress_to_vec_zlib(&bytes, 9)
    })
}

#[test]
fn hostile_pdf_is_limited_and_confined() {
    let model = reader();
    let home = Home::with(&model.config());
    // A gigabyte of text, compressed three times to some kilobytes.
    let flates = "/Filter[/FlateDecode/FlateDecode/FlateDecode]";
    let text = b"BT /F1 1 Tf (aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa) Tj ET\n";
    let block = packed(&text.repeat(200_000), 1);
    let bomb = packed(&block, 2);
    let many = {
        let kids = "3 0 R ".repeat(1_000_000);
        let objects = [
            b"<</Type/Catalog/Pages 2 0 R>>".to_vec(),
            format!("<</Type/Pages/Kids[{kids}]/Count 1000000>>").into_bytes(),
            b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]>>".to_vec(),
        ];
        of_objects(&objects, "")
    };
    let circle = {
        let objects = [
            b"<</Type/Catalog/Pages 2 0 R>>".to_vec(),
            b"<</Type/Pages/Kids[2 0 R 2 0 R]/Count 2000000000>>".to_vec(),
        ];
        of_objects(&objects, "")
    };
    // Detects readers that open a link or start a program.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let mark = home.path("workspace/launched");
    let link = format!("<</S/URI/URI(http://{address}/)>>");
    let launch = format!(
        "<</S/Launch/F(/bin/sh)/Unix<</F(/bin/sh)/P(-c 'touch {})>>>>",
        mark.display()
    );
    let said = b"BT /F1 12 Tf 72 720 Td (Tomatoes) Tj ET";
    let resources = "/Resources<</Font<</F1 6 0 R>>>>/AA<</O 5 0 R>>";
    let secret = home.write("secret.txt", "the-canary");
    let font = "<</Type/Font/Subtype/TrueType/BaseFont/X/FontDescriptor<</Type/FontDescriptor/FontName/X/Flags 4/FontFile2 7 0 R>>>>";
    let stream = format!("<</Length 0/F({})>>\nstream\n\nendstream", secret.display());
    let files = [
        (
            "bomb.pdf",
            make_page(
                &bomb,
                flates,
                &["<<>>", "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"],
                resources,
            ),
        ),
        ("many.pdf", many),
        ("circle.pdf", circle),
        (
            "link.pdf",
            make_page(said, "", &[&link, font, &stream], resources),
        ),
        (
            "launch.pdf",
            make_page(said, "", &[&launch, font, &stream], resources),
        ),
    ];
    for (name, file) in files {
        home.write(&format!("workspace/{name}"), file);
        let started = Instant::now();
        let text = read(&home, &model, &json!({ "path": name }));
        let is_named = [
            "[a PDF; here are pages",
            "broken or",
            "too much time or memory",
        ];
        assert!(
            is_named.iter().any(|known| text.contains(known)),
            "{name}: {text}"
        );
        assert!(text.len() < 30_000, "{name}: {text}");
        has_none(&text, ["the-canary"]);
        assert!(started.elapsed() < Duration::from_secs(120), "{name}");
    }
    assert!(listener.accept().is_err() && !mark.exists());
}
