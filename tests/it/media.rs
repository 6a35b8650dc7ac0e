//! Images, PDFs and recordings: limits of a turn, and the files stored with the conversation.

use std::fs;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex};

use serde_json::json;

use crate::bot::{dies, ends, home, start};
use crate::harness::{Home, has_all, merged, until};
use crate::marker::kib;
use crate::model::{Model, Reply, Request, call};
use crate::sites::serve;
use crate::stored::journal;

const OWNER: i64 = 42;

/// Returns the header of a PNG of one pixel, followed by this many bytes.
fn png(after: usize) -> Vec<u8> {
    let header = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0";
    [header.as_slice(), &vec![0; after]].concat()
}

/// Returns a unique PNG, which contains this number.
fn numbered(number: usize) -> Vec<u8> {
    [png(100), number.to_be_bytes().to_vec()].concat()
}

/// Returns an answer with this body, optionally compressed.
fn answer(body: &[u8], is_packed: bool) -> Vec<u8> {
    let (body, packed) = if is_packed {
        let deflated = miniz_oxide::deflate::compress_to_vec(body, 9);
        let gzip = [&b"\x1f\x8b\x08\0\0\0\0\0\0\x03"[..], &deflated, &[0; 8]].concat();
        (gzip, "Content-Encoding: gzip\r\n")
    } else {
        (body.to_vec(), "")
    };
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n{packed}Content-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), &body].concat()
}

/// Starts a site whose answer to `/N` is the Nth of these. It ends with the test process.
fn site(answers: Vec<Vec<u8>>) -> String {
    let address = serve(move |mut stream| {
        let mut head = [0; 4096];
        let len = stream.read(&mut head).unwrap_or(0);
        let head = String::from_utf8_lossy(&head[..len]).into_owned();
        let number = head.split([' ', '/', '?']).nth(2).unwrap_or_default();
        let number: usize = number.parse().unwrap_or(0);
        // The client may hang up early.
        drop(stream.write_all(&answers[number % answers.len()]));
    });
    format!("http://{address}")
}

/// Returns the number of images in a request.
fn images(request: &Request) -> usize {
    request.body.to_string().matches("data:image/").count()
}

/// Fetches `/0` to `/39` in one turn. Returns the turn's peak memory, the number of images sent to the model, and the results.
fn forty(answers: Vec<Vec<u8>>) -> (u64, usize, Vec<String>) {
    let site = site(answers);
    let pid: Arc<Mutex<i32>> = Arc::default();
    let (of, told) = (pid.clone(), Arc::new(Mutex::new(0)));
    let most = told.clone();
    let model = Model::answering(move |_, number| {
        if number == 0 {
            let url = |n| json!({ "url": format!("{site}/{n}") });
            let calls = (0..40).map(|n| call(&format!("c{n}"), "web_fetch", &url(n)));
            return Reply::calls(calls);
        }
        until("the process is known", || *of.lock().unwrap() > 0);
        *most.lock().unwrap() = kib(*of.lock().unwrap(), "VmHWM:");
        Reply::text("Seen.")
    });
    let open =
        json!({ "tools": { "web": { "fetch": { "allow_private": true, "timeout": 120 } } } });
    let home = Home::asking(&model, &open);
    // Locked before the start, because the model answers as soon as the process asks.
    let mut known = pid.lock().unwrap();
    // Otherwise glibc keeps freed blocks in the arena of each thread: up to 100 MB more, depending on the load.
    let run = home.bantam().env("MALLOC_MMAP_THRESHOLD_", "131072");
    let running = run.args(["agent", "-m", "look"]).spawn();
    *known = running.pid();
    drop(known);
    running.finish().exits(0);
    let last = model.request(1);
    let most = *told.lock().unwrap();
    (most, images(&last), last.texts("tool"))
}

#[test]
fn zero_filled_images_use_little_memory() {
    let (usual, shown, _) = forty(vec![answer(b"plain words", false)]);
    assert_eq!(shown, 0);
    // 8 KB on the wire, 8 MB decompressed: an invalid image, and one that is too large.
    let zeros = [b"\x89PNG\r\n\x1a\n".as_slice(), &vec![0; 8 << 20]].concat();
    let packed = vec![answer(&zeros, true), answer(&png(8_000_000), true)];
    let plain = vec![
        answer(&zeros[..8 << 20], false),
        answer(&png(8_000_000), false),
    ];
    for answers in [packed, plain] {
        let (peak, shown, told) = forty(answers);
        assert_eq!(shown, 0);
        assert!(told[0].contains("not text"), "{}", told[0]);
        assert!(told[1].contains("larger than 5.0 MB"), "{}", told[1]);
        assert!(peak < usual + 12_000, "{usual} KB became {peak} KB");
    }
}

#[test]
fn tool_images_per_turn_are_limited() {
    let small = (0..40).map(|n| answer(&numbered(n), n % 2 == 1)).collect();
    let (_, shown, told) = forty(small);
    assert_eq!(shown, 20, "{told:?}");
    let left_out = told.iter().filter(|told| told.contains("a turn shows 20"));
    assert_eq!(left_out.count(), 20, "{told:?}");
    let large = (0..40).map(|n| {
        let image = [numbered(n), vec![0; 4 << 20]].concat();
        answer(&image, false)
    });
    let (peak, shown, told) = forty(large.collect());
    assert_eq!(shown, 2);
    let left_out = told.iter().filter(|told| told.contains("12.0 MB"));
    assert_eq!(left_out.count(), 38, "{told:?}");
    assert!(peak < 140_000, "{peak} KB");
}

/// Returns the media files next to the sessions.
fn beside(home: &Home) -> Vec<String> {
    let files = home.files().into_iter();
    files.filter(|file| file.ends_with(".media")).collect()
}

#[test]
fn image_bytes_are_stored_once_and_expire() {
    let model = Model::answering(|request, _| {
        let asked = request.last("user");
        let is_first = request.texts("tool").len() < 2 && asked.contains("look");
        if is_first && images(request) == 0 {
            let look = |id| call(id, "read_file", &json!({ "path": "a.png" }));
            return Reply::calls([
                look("a"),
                call("b", "read_file", &json!({ "path": "b.png" })),
            ]);
        }
        Reply::text("Seen.")
    });
    let home = Home::with(&model.config());
    home.write("workspace/a.png", numbered(1));
    home.write("workspace/b.png", numbered(1));
    let shown = |question: &str| {
        home.agent(["-s", "x", "-m", question]).exits(0);
        images(&model.requests().pop().unwrap())
    };
    assert_eq!(shown("look"), 2);
    assert_eq!(beside(&home).len(), 1, "{:?}", beside(&home));
    let log = home.read("sessions/cli_x.jsonl");
    assert!(!log.contains("base64"), "{log}");
    assert_eq!((shown("one"), shown("two")), (2, 2));
    assert_eq!(shown("three"), 0);
    let told = model.requests().pop().unwrap();
    assert_eq!(shown("four"), 0);
    assert_eq!(beside(&home), Vec::<String>::new());
    has_all(&told.texts("tool")[0], ["no longer shown"]);
}

#[test]
fn a_reset_and_an_erasure_leave_no_media_behind() {
    let (_model, home) = Home::of(Model::answering(|_, _| Reply::text("Seen.")));
    let (a, b) = (
        home.write("a.png", numbered(1)),
        home.write("b.png", numbered(2)),
    );
    for (key, file) in [("x", &a), ("y", &b)] {
        let asked = home.bantam().args(["agent", "-s", key, "-m", "look", "-a"]);
        asked.arg(file).run().exits(0);
    }
    assert_eq!(beside(&home).len(), 2, "{:?}", beside(&home));
    home.run(["sessions", "reset", "x"]).exits(0);
    assert_eq!(beside(&home).len(), 1, "{:?}", beside(&home));
    home.run(["sessions", "erase", "y", "--yes"]).exits(0);
    assert_eq!(beside(&home), Vec::<String>::new());
}

/// Returns a conversation that is too large to load.
fn large(key: &str) -> String {
    let header = json!({ "v": 1, "session": key, "created": "2026-01-01T00:00:00Z", "base": 7 });
    let user = |text: &str| json!({ "role": "user", "content": text });
    let much = "x".repeat(17 << 20);
    journal([header, user(&much), user(&much)])
}

/// Returns the results of `read_file` for recordings in the workspace, with a host that transcribes each as `words`, or without
/// such a host.
fn heard(files: &[(&str, Vec<u8>)], words: Option<&'static str>) -> Vec<String> {
    let ears = Model::answering(move |_, _| match words {
        Some(words) => Reply::json(200, &json!({ "text": words })),
        None => panic!("nobody is set to hear it"),
    });
    let names: Vec<String> = files.iter().map(|(name, _)| (*name).to_owned()).collect();
    let model = Model::answering(move |_, number| {
        let read = |name: &String| call(name, "read_file", &json!({ "path": name }));
        match number {
            0 => Reply::calls(names.iter().map(read)),
            _ => Reply::text("Heard."),
        }
    });
    let host = json!({ "model_name": "ears", "model": "openai/ears-1", "api_base": ears.base(), "api_key": "key-of-the-ears" });
    let list = json!({ "model_list": [model.config()["model_list"][0], host] });
    let config = merged(model.config(), &list);
    let set = json!({ "tools": { "transcribe": { "model": "ears" } } });
    let home = Home::with(&match words {
        Some(_) => merged(config, &set),
        None => config,
    });
    for (name, content) in files {
        home.write(&format!("workspace/{name}"), content);
    }
    home.agent(["-m", "listen"]).exits(0);
    model.request(1).texts("tool")
}

#[test]
fn workspace_recording_is_transcribed_as_data() {
    let ogg = b"OggS\0\x02\0\xff".to_vec();
    let told = heard(&[("memo.ogg", ogg.clone())], Some("water ```\nthe basil"));
    assert_eq!(
        told,
        ["[transcript of memo.ogg]\n````\nwater ```\nthe basil\n````"]
    );
    let told = heard(&[("memo.ogg", ogg.clone())], Some(" "));
    assert!(told[0].contains("nothing was understood"), "{told:?}");
    let told = heard(&[("memo.ogg", ogg)], None);
    assert!(told[0].contains("tools.transcribe.model"), "{told:?}");
}

#[test]
fn hostile_recordings_are_limited_and_not_decoded() {
    let endless = |start: &[u8]| [start, &vec![0xff; 11 << 20]].concat();
    let files = [
        ("huge.ogg", endless(b"OggS")),
        ("huge.mp3", endless(b"ID3")),
        (
            "lengths.wav",
            b"RIFF\xff\xff\xff\xffWAVEfmt \xff\xff\xff\xff".to_vec(),
        ),
        ("name.flac", b"fLaC\x84\xff\xff\xff".to_vec()),
    ];
    let told = heard(&files, Some("words"));
    has_all(&told[0], ["too large"]);
    has_all(&told[1], ["too large"]);
    has_all(&told[2], ["words"]);
    has_all(&told[3], ["words"]);
}

#[test]
fn oversized_chat_is_answered_in_new_conversation() {
    let model = Model::answering(|_, _| Reply::text("Here."));
    let (api, home) = home(&model);
    home.write(
        &format!("sessions/telegram_{OWNER}.jsonl"),
        large("telegram_42"),
    );
    let gateway = start(&home);
    api.text(OWNER, "hello");
    let told = api.wait_for_texts(OWNER, 1);
    has_all(&told[0], ["MB"]);
    assert!(told[0].ends_with("Here."), "{told:?}");
    api.text(OWNER, "again");
    assert_eq!(api.wait_for_texts(OWNER, 2)[1], "Here.");
    ends(gateway);
}

#[test]
fn attempt_is_counted_before_conversation_loads() {
    let model = Model::answering(|_, _| Reply::text("Here."));
    let (api, home) = home(&model);
    // Sessions cannot be loaded while another process has locked them.
    let held = home.hold_session(&format!("telegram_{OWNER}"));
    api.text(OWNER, "hello");
    let queue = home.path("state/queue.jsonl");
    for starts in 1..=3 {
        let gateway = start(&home);
        until("the start is on disk", || {
            let queue = fs::read_to_string(&queue).unwrap_or_default();
            queue.matches("\"start\":").count() >= starts
                || queue.contains(&format!("\"starts\":{starts}"))
        });
        dies(gateway);
    }
    let gateway = start(&home);
    let told = api.wait_for_texts(OWNER, 1);
    assert!(told[0].contains("crashed three times"), "{told:?}");
    drop(held);
    ends(gateway);
    assert_eq!(model.asked(), 0);
}

/// Returns a conversation of this size, in lines of about `of_each` bytes.
fn of_lines(key: &str, bytes: usize, of_each: usize) -> String {
    let header = json!({ "v": 1, "session": key, "created": "2026-01-01T00:00:00Z", "base": 7 });
    let mut log = journal([header]);
    let text = "many words ".repeat(of_each / 11 + 1);
    for seq in 1.. {
        let role = ["assistant", "user"][seq % 2];
        let rest = format!(
            "\"seq\":{seq},\"content\":\"{}\",\"role\":\"{role}\",\"time\":\"2026-01-01T00:00:00Z\"}}",
            &text[..of_each]
        );
        let line = format!(
            "{{\"crc\":\"{:08x}\",{rest}\n",
            crc32fast::hash(rest.as_bytes())
        );
        if log.len() + line.len() > bytes {
            break;
        }
        log.push_str(&line);
    }
    log
}

#[test]
fn largest_conversation_has_bounded_memory_and_few_requests() {
    // A line takes far more memory than its bytes, so 16 MB of short lines are the worst case for a board.
    for (of_each, bound) in [(60, 180_000), (1 << 10, 110_000), (2 << 20, 110_000)] {
        let asking = Arc::new(Mutex::new(0));
        let (of, most) = (Arc::clone(&asking), Arc::new(Mutex::new(0)));
        let last = Arc::clone(&most);
        let model = Model::answering(move |_, _| {
            let mut last = last.lock().unwrap();
            *last = kib(*of.lock().unwrap(), "VmHWM:").max(*last);
            Reply::text("Here.")
        });
        let home = Home::with(&model.config());
        let log = of_lines("cli_x", 16 << 20, of_each);
        let lines = log.lines().count();
        home.write("sessions/cli_x.jsonl", log);
        let ask = |text: &str| {
            // Locked first, because the process may ask before its pid is known here.
            let mut pid = asking.lock().unwrap();
            let agent = home.bantam().args(["agent", "-s", "x", "-m", text]).spawn();
            *pid = agent.pid();
            drop(pid);
            agent.finish().answers("Here.\n");
        };
        ask("hello");
        let requests = model.asked();
        ask("again");
        let peak = *most.lock().unwrap();
        println!("{lines} lines of {of_each} bytes: {peak} KB, {requests} requests");
        // Measured: 158, 67 and 50 MB.
        assert!(peak < bound, "{lines} lines of {of_each} bytes: {peak} KB");
        assert!(requests <= 9, "{lines} lines: {requests} requests");
        // The second one has nothing to leave out.
        assert_eq!(model.asked(), requests + 1);
        assert!(home.path("sessions/cli_x.1.jsonl").exists());
        let kept = fs::metadata(home.path("sessions/cli_x.jsonl")).unwrap();
        assert!(kept.len() < 2 << 20, "{} bytes", kept.len());
        let summary = home.session("cli_x").lines[0]["summary"].clone();
        let told = summary.as_str().unwrap_or_default();
        assert!(told.contains("too many to read"), "{of_each}: {summary}");
    }
}
