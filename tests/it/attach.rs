//! `-a`: files attached to a question.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;

use crate::harness::{CANARY, Home, has_all, has_fields, has_none};
use crate::model::{Model, Reply, call};
use crate::pdf::pdf;

/// One pixel.
const GIF: &[u8] = b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;";
const GIF_IN_BASE64: &str = "R0lGODlhAQABAIAAAAAAAP///ywAAAAAAQABAAACAkQBADs=";

#[test]
fn a_text_file_stands_below_the_question_with_its_name() {
    let (model, home) = Home::of(Model::scripted([Reply::text("Plants.")]));
    let notes = home.write("notes.md", "# Plants\n```\nbasil\n```\n");
    let list = home.write("list.txt", "grüße\n");
    let asked = home
        .bantam()
        .args(["agent", "-m", "what is this?", "-a"])
        .arg(&notes)
        .arg("--attach")
        .arg(&list);
    asked.run().answers("Plants.\n");
    let user = model.request(0).last("user");
    let expected = format!(
        "\nwhat is this?\n\n[file: {}]\n````\n# Plants\n```\nbasil\n```\n````\n\n[file: {}]\n```\ngrüße\n```",
        notes.display(),
        list.display()
    );
    assert!(user.ends_with(&expected), "{user}");
}

#[test]
fn an_image_goes_beside_the_question_and_stays_in_the_conversation() {
    let model = Model::scripted([Reply::text("A pixel."), Reply::text("White.")]);
    let home = Home::with(&model.config());
    // Its type is detected by its bytes instead of its name.
    let pixel = home.write("pixel.txt", GIF);
    let named = format!("what is @{}?", pixel.display());
    home.agent(["--dry-run", &named]).exits(0).says("-a /");
    home.bantam()
        .args(["agent", "-m", "what is this?", "-a"])
        .arg(&pixel)
        .run()
        .answers("A pixel.\n");
    fs::remove_file(pixel).unwrap();
    home.agent(["-m", "which colour?"]).exits(0);
    for request in [model.request(0), model.request(1)] {
        let content = &request.messages()[1]["content"];
        assert!(
            content[0]["text"]
                .as_str()
                .unwrap()
                .ends_with("\nwhat is this?\n\n[image: pixel.txt]"),
            "{content}"
        );
        let url = format!("data:image/gif;base64,{GIF_IN_BASE64}");
        assert_eq!(
            content[1],
            json!({ "type": "image_url", "image_url": { "url": url } })
        );
    }
}

#[test]
fn a_file_on_standard_input_is_attached() {
    let image = format!("data:image/gif;base64,{GIF_IN_BASE64}");
    for (args, stdin, sent) in [
        (&["what is this?"][..], GIF.to_vec(), &*image),
        (&["-a", "-", "what is this?"], GIF.to_vec(), &image),
        (&["what is this?"], pdf(), "application/pdf"),
        (
            &["-a", "-", "what is this?"],
            b"line 1".to_vec(),
            "line 1\\n```",
        ),
    ] {
        let (model, home) = Home::of(Model::scripted([Reply::text("A pixel.")]));
        let run = home.bantam().arg("agent").args(args).stdin(stdin).run();
        run.answers("A pixel.\n");
        let content = model.request(0).messages()[1]["content"].to_string();
        assert!(content.contains(sent), "{args:?}: {content}");
        assert!(content.contains("what is this?"), "{args:?}: {content}");
    }
}

#[test]
fn another_binary_on_standard_input_is_refused() {
    let (_model, home) = Home::of(Model::never_asked());
    for (stdin, says) in [
        (b"\x7fELF\x02\x01\x01\0\0\0\0\0".to_vec(), "not text"),
        (b"PK\x03\x04\x14\0\0\0".to_vec(), "not text"),
        (vec![0; 64], "not text"),
    ] {
        let run = home.bantam().args(["agent", "hi"]).stdin(stdin).run();
        run.exits(2).says(says);
    }
    // A picture without a question.
    let run = home.bantam().arg("agent").stdin(GIF).run();
    run.exits(2).says("no question");
}

#[test]
fn text_is_read_in_its_encoding_with_a_warning_for_wrong_bytes() {
    let utf16 = b"\xff\xfeg\0r\0\xfc\0\xdf\0e\0\n\0";
    for (bytes, text, warning) in [
        (&utf16[..], "grüße", ""),
        (b"\xfe\xff\0b\0a", "ba", ""),
        (b"\xef\xbb\xbfbasil\n", "basil", ""),
        (b"caf\xe9 au lait\n", "caf\u{fffd} au lait", "not UTF-8"),
        (b"\xff\xfeg\0r", "g\u{fffd}", "not UTF-16LE"),
    ] {
        let (model, home) = Home::of(Model::answering(|_, _| Reply::text("Read.")));
        let file = home.write("notes.txt", bytes).display().to_string();
        let piped = home.bantam().args(["agent", "what?"]).stdin(bytes).run();
        let attached = home.bantam().args(["agent", "-n", "what?", "-a", &file]);
        for (run, request) in [(piped, 0), (attached.run(), 1)] {
            run.answers("Read.\n");
            assert_eq!(run.stderr.is_empty(), warning.is_empty(), "{}", run.stderr);
            run.says(warning);
            let asked = model.request(request).last("user");
            assert!(asked.contains(&format!("\n{text}")), "{asked}");
        }
        let quiet = home.bantam().args(["agent", "-q", "what?"]).stdin(bytes);
        quiet.run().exits(0).is_quiet();
    }
}

#[test]
fn pdf_without_text_is_attached_with_a_warning() {
    let (_model, home) = Home::of(Model::answering(|_, _| Reply::text("Seen.")));
    for (bytes, warning) in [
        (crate::pdf::with_pages(&[""]), "scan"),
        (b"%PDF-1.4\nno more".to_vec(), "broken"),
        (pdf(), ""),
    ] {
        let file = home.write("scan.pdf", bytes).display().to_string();
        let run = home.run(["agent", "-n", "what?", "-a", &file]);
        run.answers("Seen.\n").says(warning);
        assert_eq!(run.stderr.is_empty(), warning.is_empty(), "{}", run.stderr);
    }
    home.bantam()
        .args(["agent", "what?"])
        .stdin(b"%PDF-1.4\nno more")
        .run()
        .exits(0)
        .says("standard input: ");
}

#[test]
fn planted_link_or_pipe_is_not_attached() {
    let model = Model::never_asked();
    let (home, other) = (Home::with(&model.config()), Home::empty());
    home.dir("workspace/pipes");
    other.dir("mine");
    symlink("../config.json", home.path("workspace/photo.txt")).unwrap();
    symlink("photo.txt", home.path("workspace/chain.txt")).unwrap();
    symlink("..", home.path("workspace/dir")).unwrap();
    symlink(home.path("workspace"), other.path("mine/work")).unwrap();
    let pipe = home.path("workspace/pipes/pipe");
    rustix::fs::mkfifoat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
    )
    .unwrap();
    let attach = |path: String| home.run(["agent", "-n", "-m", "what?", "-a", &path]);
    let at = |path: &str| home.path(path).display().to_string();
    for path in [
        "workspace/photo.txt",
        "workspace/chain.txt",
        "workspace/dir/config.json",
    ] {
        attach(at(path)).fails(2).says("that tools can change");
    }
    // Nothing of this name is shown.
    symlink("../config.json", home.path("workspace/\u{7}")).unwrap();
    let inside = home.bantam().cwd(home.path("workspace"));
    let run = inside
        .args(["agent", "-n", "-m", "what?", "-a", "\u{7}"])
        .run();
    run.fails(2).says("that tools can change");
    attach(String::new()).fails(2).says("no file");
    let through = other.path("mine/work");
    attach(format!("{}/dir/config.json", through.display()))
        .exits(2)
        .says("that tools can change");
    attach(pipe.display().to_string())
        .exits(2)
        .says("not a regular file");
    attach(format!("{}/pipes/pipe", through.display()))
        .exits(2)
        .says("not a regular file");
    // Not even a file that tools may read.
    let open = json!({ "agents": { "defaults": { "restrict_to_workspace": false } } });
    home.reconfigure(&model, &open);
    symlink("/etc/hostname", home.path("workspace/notes.txt")).unwrap();
    attach(at("workspace/notes.txt"))
        .exits(2)
        .says("that tools can change");
}

#[test]
fn attached_files_are_redacted() {
    let other = Home::empty();
    let tree = other.dir("tree").display().to_string();
    // The harness searches for the whole key in files.
    let (start, end) = CANARY.split_at(10);
    let book = other.write("tree/book.txt", format!("{start}\n{end}\n"));
    let whole = format!("awk '{{printf \"%s\", $0}}' {}", book.display());
    let model = Model::scripted([
        Reply::calls([
            call("a", "exec", &json!({ "command": whole })),
            call("b", "read_file", &json!({ "path": book })),
        ]),
        Reply::text("Done."),
    ]);
    let home = Home::asking(&model, &json!({ "tools": { "read_paths": [tree] } }));
    // A pipe is not a file, and its content is not stored elsewhere.
    let asked = home
        .bantam()
        .after("exec 9<<END\nkey = ${KEY}\nEND")
        .env("KEY", CANARY);
    asked
        .args(["agent", "-n", "-m", "what?", "-a", "/dev/fd/9"])
        .run()
        .exits(0);
    let user = model.request(0).last("user");
    assert!(user.contains("key = ") && !user.contains(CANARY), "{user}");
    let told = model.request(1).texts("tool");
    has_none(&told[0], [CANARY, "rror"]);
    has_all(&told[1], [end]);
}

#[test]
fn a_pdf_is_a_document_to_anthropic() {
    let model = Model::answering(|_, _| {
        Reply::json(
            200,
            &json!({ "content": [{ "type": "text", "text": "Seen." }], "stop_reason": "end_turn" }),
        )
    });
    let entry = json!({ "model_name": "test", "model": "anthropic/claude", "api_base": model.base(), "api_key": "k" });
    let home = Home::with(
        &json!({ "agents": { "defaults": { "model_name": "test" } }, "model_list": [entry] }),
    );
    let file = home.write("plan.pdf", pdf());
    home.bantam()
        .args(["agent", "-m", "what?", "-a"])
        .arg(&file)
        .run()
        .answers("Seen.\n");
    let content = model.request(0).messages()[0]["content"].clone();
    assert_eq!(content[1]["text"], "[file: plan.pdf]");
    let part = &content[2];
    has_fields(
        part,
        &json!({ "type": "document", "source": { "media_type": "application/pdf" }, "title": "plan.pdf" }),
    );
}

#[test]
fn a_recording_goes_as_it_is_or_becomes_a_line() {
    let (model, home) = Home::of(Model::scripted([
        Reply::text("Heard."),
        Reply::error(400, "no input_audio here"),
        Reply::text("Not heard."),
    ]));
    let song = home.write("song", b"ID3\x04\0\0");
    let ask = || {
        home.bantam()
            .args(["agent", "-v", "--new", "-m", "what?", "-a"])
            .arg(&song)
            .run()
    };
    ask().answers("Heard.\n");
    let part = model.request(0).messages()[1]["content"][1].clone();
    assert_eq!(
        part,
        json!({ "type": "input_audio", "input_audio": { "data": "SUQzBAAA", "format": "mp3" } })
    );
    ask().answers("Not heard.\n").says("does not support audio");
    has_all(
        &model.request(2).last("user"),
        [", audio/mpeg, 6 bytes: left out"],
    );
}
