//! Runs the real program in a separate home and inspects the results.
//!
//! When a test fails, [`Home`] prints every command that ran, both its streams, the files in the home, and the failure again;
//! [`super::model::Model`] adds the received requests. After every run, the harness searches for the [`CANARY`], because a key
//! must appear only in `config.json` and on the wire.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, Once};
use std::time::{Duration, Instant};
use std::{panic, thread};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::{Value, json};

use super::model::Model;
use super::program::{directory, program};
use super::stored::Session;
use super::without_syscall::{Withheld, withhold};

/// Returns the text that a terminal displays: without escape sequences, carriage returns and erased lines.
pub fn seen(text: &str) -> String {
    let mut out = String::new();
    let mut is_at_start = false;
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match c {
            '\u{1b}' => {
                if characters.find(char::is_ascii_alphabetic) == Some('K') && is_at_start {
                    out.truncate(out.rfind('\n').map_or(0, |end| end + 1));
                }
            }
            '\r' => is_at_start = true,
            c => {
                is_at_start = false;
                out.push(c);
            }
        }
    }
    out
}

/// API key of every test, an obvious fake. It is long and odd enough to be found anywhere.
pub const CANARY: &str = "sk-test-canary-4f1d8a6be2c97035";

/// Time after which a run counts as hung. The longest one waits 30 s for a busy session.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns a number that is unique among the tests of this process.
pub fn unique() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Waits until `condition` is met. Fails the test after a minute, because machines are busy.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < deadline, "waited {LIMIT:?} until {what}");
        thread::park_timeout(Duration::from_millis(5));
    }
}

/// Checks that a text has each of these parts.
#[track_caller]
pub fn has_all<const N: usize>(text: &str, parts: [&str; N]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?}: {text}");
    }
}

/// Checks that a text has none of these parts.
#[track_caller]
pub fn has_none<const N: usize>(text: &str, parts: [&str; N]) {
    for part in parts {
        assert!(!text.contains(part), "{part:?}: {text}");
    }
}

/// Checks that an object has these fields, and any others.
#[track_caller]
pub fn has_fields(object: &Value, fields: &Value) {
    assert_eq!(*object, merged(object.clone(), fields));
}

/// Returns a configuration for an OpenAI-compatible server at `base`, with short delays between retries.
pub fn config_for(base: &str) -> Value {
    json!({
        "agents": { "defaults": { "model_name": "test", "max_retries": 2, "retry_initial_delay": 0.01 } },
        "model_list": [ { "model_name": "test", "model": "openai/test-model", "api_base": base, "api_key": CANARY } ]
    })
}

/// Merges `extra` into `base`: objects by key, arrays by element. Other values are replaced.
pub fn merged(base: Value, extra: &Value) -> Value {
    match (base, extra) {
        (Value::Object(mut base), Value::Object(extra)) => {
            for (key, value) in extra {
                let below = base.remove(key).unwrap_or(Value::Null);
                base.insert(key.clone(), merged(below, value));
            }
            Value::Object(base)
        }
        (Value::Array(base), Value::Array(extra)) if base.len() == extra.len() => base
            .into_iter()
            .zip(extra)
            .map(|(below, value)| merged(below, value))
            .collect(),
        (_, extra) => extra.clone(),
    }
}

thread_local! {
    /// The panic of a failed test.
    static FAILURE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Stores panics for [`print_failure`].
fn watch_for_failures() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |failure| {
            FAILURE.set(failure.to_string());
            print(failure);
        }));
    });
}

/// Prints the panic of the failed test again, because the end of a long dump is read first.
pub fn print_failure() {
    let failure = FAILURE.with_borrow(String::clone);
    eprintln!("\n==== why it failed ====\n{failure}");
}

/// A new `BANTAM_HOME` and an empty working directory, both removed when dropped.
pub struct Home {
    root: PathBuf,
    runs: Mutex<String>,
}

impl Home {
    /// Returns a home whose directory is missing.
    pub fn empty() -> Self {
        watch_for_failures();
        let root = directory().join(unique().to_string());
        fs::create_dir_all(root.join("cwd")).unwrap();
        Self {
            root,
            runs: Mutex::default(),
        }
    }

    /// Returns a home with this configuration.
    pub fn with(config: &Value) -> Self {
        let home = Self::empty();
        home.config(&config.to_string());
        home
    }

    /// Returns this model, and a home that is configured to ask it.
    pub fn of(model: Model) -> (Model, Self) {
        let home = Self::with(&model.config());
        (model, home)
    }

    /// Returns a home that is configured to ask this model, with more settings.
    pub fn asking(model: &Model, more: &Value) -> Self {
        Self::with(&merged(model.config(), more))
    }

    /// Configures the home to ask this model, with more settings.
    pub fn reconfigure(&self, model: &Model, more: &Value) {
        self.config(&merged(model.config(), more).to_string());
    }

    /// Writes `config.json`, readable only by its owner, as bantam would.
    pub fn config(&self, text: &str) {
        self.write("config.json", text);
    }

    /// Returns a path in the home.
    pub fn path(&self, below: &str) -> PathBuf {
        self.root.join("home").join(below)
    }

    /// Locks a session as another bantam would, until dropped.
    pub fn hold_session(&self, key: &str) -> fs::File {
        let file = fs::File::open(self.write(&format!("state/locks/{key}.lock"), "")).unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        file
    }

    /// Writes a file in the home, with its parent directories (0700) and readable only by its owner (0600).
    pub fn write(&self, below: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(below);
        self.dir(path.parent().unwrap().strip_prefix(self.path("")).unwrap());
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&path).unwrap();
        file.write_all(content.as_ref()).unwrap();
        path
    }

    /// Returns the text of a file in the home.
    #[track_caller]
    pub fn read(&self, below: impl AsRef<Path>) -> String {
        let path = self.root.join("home").join(below);
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("reading {}: {e}", path.display()))
    }

    /// Creates a directory in the home, with mode 0700 like every other.
    pub fn dir(&self, below: impl AsRef<Path>) -> PathBuf {
        let path = self.root.join("home").join(below);
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&path).unwrap();
        path
    }

    /// Returns the paths of all files in the home, relative to it and sorted.
    pub fn files(&self) -> Vec<String> {
        let home = self.path("");
        let mut found: Vec<String> = walk(&home)
            .into_iter()
            .filter(|path| !path.is_dir() || path.is_symlink())
            .map(|path| path.strip_prefix(&home).unwrap().display().to_string())
            .collect();
        found.sort();
        found
    }

    /// Returns the session stored as `key`, with all lines verified.
    #[track_caller]
    pub fn session(&self, key: &str) -> Session {
        let path = self.path(&format!("sessions/{key}.jsonl"));
        let bytes =
            fs::read(&path).unwrap_or_else(|error| panic!("reading {}: {error}", path.display()));
        Session::parse(&bytes)
    }

    /// Returns a `bantam` command without arguments.
    pub fn bantam(&self) -> Bantam<'_> {
        Bantam {
            home: self,
            args: Vec::new(),
            env: Vec::new(),
            unset: None,
            stdin: Stdin::Null,
            stdout: Stdout::Caught,
            prelude: "",
            cwd: self.root.join("cwd"),
            withheld: &[],
            columns: None,
            afterwards: "",
            is_fresh: false,
        }
    }

    /// Runs `bantam ARGS...` with empty standard input.
    #[track_caller]
    pub fn run(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Run {
        self.bantam().args(args).run()
    }

    /// Runs `bantam agent ARGS...` with empty standard input.
    #[track_caller]
    pub fn agent<const N: usize>(&self, args: [&str; N]) -> Run {
        self.run(["agent"].into_iter().chain(args))
    }

    /// Fails the test if the canary is in a stream, or in a file other than `config.json`.
    #[track_caller]
    fn look_for_the_canary(&self, run: &Run) {
        for (stream, text) in [("stdout", &run.stdout), ("stderr", &run.stderr)] {
            assert!(!text.contains(CANARY), "the API key is on {stream}");
        }
        for path in walk(&self.root) {
            let regular = path.symlink_metadata().is_ok_and(|meta| meta.is_file());
            if regular && path != self.path("config.json") {
                let bytes = fs::read(&path).unwrap_or_default();
                assert!(
                    !holds(&bytes, CANARY.as_bytes()),
                    "the API key is in {}",
                    path.display()
                );
            }
        }
    }

    /// Checks that a one-shot run did not use its working directory.
    #[track_caller]
    fn look_at_the_working_directory(&self) {
        let left: Vec<PathBuf> = walk(&self.root.join("cwd"));
        assert!(left.is_empty(), "left in the working directory: {left:?}");
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if thread::panicking() {
            let runs = self
                .runs
                .lock()
                .map_or_else(|e| e.into_inner().clone(), |r| r.clone());
            eprintln!("\n==== what ran ====\n{runs}==== files ====");
            for path in walk(&self.root) {
                let meta = path.symlink_metadata();
                let size = meta.as_ref().map_or(0, fs::Metadata::len);
                eprintln!("{size:>8}  {}", path.display());
                let shown = path
                    .extension()
                    .is_some_and(|e| e == "jsonl" || e == "json");
                if shown && size < 16_384 && meta.is_ok_and(|meta| meta.is_file()) {
                    eprintln!("{}", fs::read_to_string(&path).unwrap_or_default());
                }
            }
            print_failure();
        }
        fs::remove_dir_all(&self.root).unwrap_or_else(|error| {
            eprintln!("removing {}: {error}", self.root.display());
        });
    }
}

/// Returns everything under `root`, without following symlinks.
pub fn walk(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![root.to_path_buf()];
    while let Some(dir) = left.pop() {
        // A running program may remove files meanwhile.
        let entries = fs::read_dir(&dir).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            if path.is_dir() && !path.is_symlink() {
                left.push(path.clone());
            }
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Compares only where the first byte matches, because comparing everywhere takes seconds for a large file in a debug build.
pub fn holds(haystack: &[u8], needle: &[u8]) -> bool {
    let Some(&first) = needle.first() else {
        return true;
    };
    let mut rest = haystack;
    // For bytes, this is the standard library's optimized search.
    while rest.contains(&first) {
        let at = rest
            .iter()
            .position(|byte| *byte == first)
            .unwrap_or_default();
        if rest[at..].starts_with(needle) {
            return true;
        }
        rest = &rest[at + 1..];
    }
    false
}

enum Stdin {
    Null,
    Bytes(Vec<u8>),
    /// File descriptor 0 is closed, as under some init systems.
    Closed,
    /// A pipe that remains silent and open until the end of the run.
    Silent,
}

enum Stdout {
    Caught,
    /// Every write fails because the disk is full.
    Full,
    /// Both ends are a terminal, whose output is captured. Typed text comes from `stdin`.
    Terminal,
}

/// Builder of a command line. Its environment has `PATH`, `TZ` (UTC), `BANTAM_HOME`, `OLLAMA_HOST` (unused) and the test's.
pub struct Bantam<'h> {
    home: &'h Home,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    unset: Option<&'static str>,
    stdin: Stdin,
    stdout: Stdout,
    prelude: &'static str,
    cwd: PathBuf,
    withheld: &'static [Withheld],
    columns: Option<u32>,
    afterwards: &'static str,
    is_fresh: bool,
}

impl<'h> Bantam<'h> {
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.args
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.into(), value.as_ref().to_owned()));
        self
    }

    /// Removes a variable from the environment, `BANTAM_HOME` or `PATH`.
    pub fn without(mut self, name: &'static str) -> Self {
        self.unset = Some(name);
        self
    }

    pub fn stdin(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.stdin = Stdin::Bytes(bytes.as_ref().to_vec());
        self
    }

    pub fn closed_stdin(mut self) -> Self {
        self.stdin = Stdin::Closed;
        self
    }

    pub fn silent_stdin(mut self) -> Self {
        self.stdin = Stdin::Silent;
        self
    }

    pub fn full_stdout(mut self) -> Self {
        self.stdout = Stdout::Full;
        self
    }

    pub fn on_a_terminal(mut self) -> Self {
        self.stdout = Stdout::Terminal;
        self
    }

    /// Uses a terminal with all features and this many columns.
    pub fn on_a_clever_terminal(self, columns: u32) -> Self {
        let mut clever = self
            .on_a_terminal()
            .env("TERM", "xterm-256color")
            .env("LANG", "C.UTF-8");
        clever.columns = Some(columns);
        clever
    }

    /// On a terminal, makes a shell run this after bantam has ended, also by Ctrl-C.
    pub fn before(mut self, afterwards: &'static str) -> Self {
        self.afterwards = afterwards;
        self
    }

    /// Makes a shell run this first, to limit bantam's resources.
    pub fn after(mut self, prelude: &'static str) -> Self {
        self.prelude = prelude;
        self
    }

    pub fn cwd(mut self, cwd: impl Into<PathBuf>) -> Self {
        self.cwd = cwd.into();
        self
    }

    /// Makes the kernel refuse some system calls of the program and its descendants.
    pub fn on_a_system_without(mut self, withheld: &'static [Withheld]) -> Self {
        self.withheld = withheld;
        self
    }

    /// Runs the command to its end.
    #[track_caller]
    pub fn run(self) -> Run {
        self.spawn().finish()
    }

    /// Starts the command.
    #[track_caller]
    pub fn spawn(self) -> Running<'h> {
        let line = shown(&self.args);
        let this = self.in_known_conversation();
        let mut command = this.command();
        let started = Instant::now();
        let mut child = command
            .spawn()
            .unwrap_or_else(|e| panic!("starting {command:?}: {e}"));
        drop(command); // and with it our copy of the pipe's end that is given away as stdout
        let out = Stream::of(child.stdout.take());
        let err = Stream::of(child.stderr.take());
        let typed = child.stdin.take();
        let held = match this.stdin {
            Stdin::Bytes(bytes) => {
                let mut typed = typed.unwrap();
                // The program may leave its input unread.
                thread::spawn(move || typed.write_all(&bytes).ok());
                None
            }
            _ => typed,
        };
        Running {
            home: this.home,
            line,
            pid: Pid::from_child(&child),
            ended: Ended::of(child),
            out,
            err,
            typing: held,
            seen: 0,
            started,
        }
    }

    /// Asks in a separate conversation, as people do. Other questions use the conversation `default`, whose key tests know,
    /// unless they name another one.
    pub fn fresh(mut self) -> Self {
        self.is_fresh = true;
        self
    }

    fn in_known_conversation(mut self) -> Self {
        const NAMES_ONE: [&str; 6] = [
            "-c",
            "--continue",
            "--new",
            "--no-session",
            "--help",
            "--session",
        ];
        let names_one = |arg: &OsString| {
            let arg = arg.to_string_lossy();
            arg.starts_with("-s") || NAMES_ONE.iter().any(|flag| arg.starts_with(flag))
        };
        let is_question = self.args.first().is_some_and(|arg| arg == "agent");
        if is_question && !self.is_fresh && !self.args.iter().any(names_one) {
            self.args.splice(1..1, ["-s".into(), "default".into()]);
        }
        self
    }

    fn command(&self) -> Command {
        let program = program();
        let closing = match (&self.stdin, &self.stdout) {
            (Stdin::Closed, _) => "<&-",
            _ => "",
        };
        let mut command = if matches!(self.stdout, Stdout::Terminal) {
            let mut typescript = Command::new("script");
            let line = [program.into()]
                .into_iter()
                .chain(self.args.iter().cloned());
            let line = shell_words::join(line.map(|word| word.into_string().unwrap()));
            let line = self.columns.map_or(line.clone(), |columns| {
                format!("stty cols {columns}; exec {line}")
            });
            let line = match self.afterwards {
                "" => line,
                then => format!("trap : INT; {line}; code=$?; {then}; exit $code"),
            };
            typescript.args(["-qefc", &line, "/dev/null"]);
            typescript
        } else if closing.is_empty() && self.prelude.is_empty() {
            let mut direct = Command::new(program);
            direct.args(&self.args);
            direct
        } else {
            let mut shell = Command::new("/bin/sh");
            shell.args([
                "-c",
                &format!("{}\nexec \"$0\" \"$@\" {closing}", self.prelude),
                program,
            ]);
            shell.args(&self.args);
            shell
        };
        command.env_clear();
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin");
        command.env("TZ", "UTC");
        command.env("BANTAM_HOME", self.home.path(""));
        // An unused port, so that tests do not use the machine's Ollama.
        command.env("OLLAMA_HOST", "127.0.0.1:9");
        self.unset.map(|name| command.env_remove(name));
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.current_dir(&self.cwd).process_group(0);
        command.stdin(match self.stdin {
            Stdin::Null | Stdin::Closed => Stdio::null(),
            Stdin::Bytes(_) | Stdin::Silent => Stdio::piped(),
        });
        command.stdout(match self.stdout {
            Stdout::Caught | Stdout::Terminal => Stdio::piped(),
            Stdout::Full => fs::OpenOptions::new()
                .write(true)
                .open("/dev/full")
                .unwrap()
                .into(),
        });
        command.stderr(Stdio::piped());
        withhold(&mut command, self.withheld);
        command
    }
}

fn shown(args: &[OsString]) -> String {
    let words = args.iter().map(|arg| arg.to_string_lossy().into_owned());
    shell_words::join(["bantam".to_owned()].into_iter().chain(words))
}

/// Content of a stream so far, read by a separate thread.
#[derive(Clone, Default)]
struct Stream(Arc<(Mutex<Caught>, Condvar)>);

#[derive(Default)]
struct Caught {
    bytes: Vec<u8>,
    ended: bool,
}

impl Stream {
    fn of(source: Option<impl Read + Send + 'static>) -> Self {
        let stream = Self::default();
        let filled = stream.clone();
        let fill = move || {
            let (caught, changed) = &*filled.0;
            let mut source = source;
            let mut buffer = [0; 4096];
            loop {
                let read = match source.as_mut().map(|source| source.read(&mut buffer)) {
                    Some(Err(error)) if error.kind() == ErrorKind::Interrupted => continue,
                    Some(Ok(read)) => read,
                    Some(Err(_)) | None => 0,
                };
                let mut caught = caught.lock().unwrap();
                caught.bytes.extend_from_slice(&buffer[..read]);
                caught.ended = read == 0;
                changed.notify_all();
                if caught.ended {
                    return;
                }
            }
        };
        thread::spawn(fill);
        stream
    }

    /// Returns whether `enough` was met before the deadline.
    fn wait(&self, deadline: Instant, mut enough: impl FnMut(&Caught) -> bool) -> bool {
        let (caught, changed) = &*self.0;
        let left = deadline.saturating_duration_since(Instant::now());
        let guard = caught.lock().unwrap();
        let (guard, _) = changed
            .wait_timeout_while(guard, left, |caught| !enough(caught))
            .unwrap();
        enough(&guard)
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.0.lock().unwrap().bytes).into_owned()
    }
}

/// The end of a child, set by a thread that waits for it.
#[derive(Clone, Default)]
struct Ended(Arc<(Mutex<Option<ExitStatus>>, Condvar)>);

impl Ended {
    fn of(mut child: Child) -> Self {
        let ended = Self::default();
        let told = ended.clone();
        thread::spawn(move || {
            let status = child.wait().unwrap();
            *told.0.0.lock().unwrap() = Some(status);
            told.0.1.notify_all();
        });
        ended
    }

    fn wait(&self, deadline: Instant) -> Option<ExitStatus> {
        let left = deadline.saturating_duration_since(Instant::now());
        let guard = self.0.0.lock().unwrap();
        let (guard, _) = self
            .0
            .1
            .wait_timeout_while(guard, left, |ended| ended.is_none())
            .unwrap();
        *guard
    }
}

/// A bantam that may still be running. Dropping it kills it.
pub struct Running<'h> {
    home: &'h Home,
    line: String,
    pid: Pid,
    ended: Ended,
    out: Stream,
    err: Stream,
    /// The open end of [`Stdin::Silent`].
    typing: Option<ChildStdin>,
    /// Length of stdout that was already awaited.
    seen: usize,
    started: Instant,
}

impl Running<'_> {
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    pub fn is_running(&self) -> bool {
        self.ended.wait(Instant::now()).is_none()
    }

    /// Types on a standard input that was silent so far.
    pub fn types(&mut self, text: &str) {
        self.typing
            .as_mut()
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
    }

    /// Waits until stdout has shown `text`.
    #[track_caller]
    pub fn wait_for_stdout(&self, text: &str) {
        wait_for("stdout", &self.out, text);
    }

    /// Types, and waits until stdout has shown a text.
    #[track_caller]
    pub fn types_until(&mut self, typed: &str, shown: &str) {
        self.types(typed);
        self.wait_for_stdout(shown);
    }

    /// Types, and waits until stdout has shown a text after the text awaited before.
    #[track_caller]
    pub fn types_until_next(&mut self, typed: &str, shown: &str) {
        self.types(typed);
        self.wait_for_next_stdout(shown);
    }

    /// Waits until stdout has shown `text` after the text awaited before.
    #[track_caller]
    pub fn wait_for_next_stdout(&mut self, text: &str) {
        let deadline = Instant::now() + LIMIT;
        let from = self.seen;
        let at = |bytes: &[u8]| {
            bytes[from..]
                .windows(text.len())
                .position(|part| part == text.as_bytes())
        };
        self.out.wait(deadline, |caught| {
            caught.ended || at(&caught.bytes).is_some()
        });
        let shown = self.out.text();
        let found = at(shown.as_bytes())
            .unwrap_or_else(|| panic!("stdout never showed {text:?}, only {shown:?}"));
        self.seen = from + found + text.len();
    }

    /// Waits until stderr has shown `text`.
    #[track_caller]
    pub fn wait_for_stderr(&self, text: &str) {
        wait_for("stderr", &self.err, text);
    }

    /// Waits for a line of standard error with this text.
    #[track_caller]
    pub fn stderr_line(&self, text: &str) -> String {
        self.wait_for_stderr(text);
        let shown = self.err.text();
        let line = shown.lines().find(|line| line.contains(text));
        line.unwrap_or_default().to_owned()
    }

    /// Sends a signal to the process, but not to its children.
    pub fn signal(&self, signal: Signal) {
        // The process may end at this moment.
        let sent = if self.is_running() {
            kill_process(self.pid, signal)
        } else {
            Ok(())
        };
        assert!(
            matches!(sent, Ok(()) | Err(rustix::io::Errno::SRCH)),
            "{sent:?}"
        );
    }

    /// Waits only for the end, because the search for the canary in [`Self::finish`] takes extra time.
    pub fn wait(&self) {
        self.ended.wait(Instant::now() + LIMIT);
    }

    /// Waits for the end, then searches for the canary.
    #[track_caller]
    pub fn finish(self) -> Run {
        self.finish_within(LIMIT)
    }

    /// Waits for the end of a program, up to this limit.
    #[track_caller]
    pub fn finish_within(self, limit: Duration) -> Run {
        // Allows time to notice that the program has already ended.
        let deadline = (self.started + limit).max(Instant::now() + Duration::from_secs(10));
        let status = self.ended.wait(deadline);
        let both =
            [&self.out, &self.err].map(|stream| stream.wait(deadline, |caught| caught.ended));
        let run = Run {
            code: status.and_then(|status| status.code()),
            killed_by: status.and_then(|status| status.signal()),
            stdout: self.out.text(),
            stderr: self.err.text(),
            took: self.started.elapsed(),
        };
        let end = run.code.map_or_else(
            || format!("signal {:?}", run.killed_by),
            |code| format!("exit {code}"),
        );
        self.note(&end, &run.stdout, &run.stderr);
        assert!(
            status.is_some(),
            "still running after {limit:?}: {}",
            self.line
        );
        assert_eq!(
            both,
            [true, true],
            "something it started holds its streams open: {}",
            self.line
        );
        self.home.look_for_the_canary(&run);
        self.home.look_at_the_working_directory();
        run
    }

    /// Records the command and its output for the report of a failed test.
    fn note(&self, end: &str, stdout: &str, stderr: &str) {
        let (line, took) = (&self.line, self.started.elapsed());
        let report = format!(
            "$ {line}\n[{end} after {took:?}]\n--- stdout\n{stdout}\n--- stderr\n{stderr}\n"
        );
        self.home.runs.lock().unwrap().push_str(&report);
    }
}

#[track_caller]
fn wait_for(name: &str, stream: &Stream, text: &str) {
    let deadline = Instant::now() + LIMIT;
    let seen = |caught: &Caught| holds(&caught.bytes, text.as_bytes());
    stream.wait(deadline, |caught| caught.ended || seen(caught));
    let shown = stream.text();
    assert!(
        shown.contains(text),
        "{name} never showed {text:?}, only {shown:?}"
    );
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.is_running() {
            kill_process_group(self.pid, Signal::KILL).ok();
            self.ended.wait(Instant::now() + LIMIT);
            self.note("killed by the test", &self.out.text(), &self.err.text());
        }
    }
}

/// Result of a run of bantam.
pub struct Run {
    /// Exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    pub killed_by: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

impl Run {
    #[track_caller]
    pub fn exits(&self, code: i32) -> &Self {
        let seen = self.code;
        assert_eq!(
            seen,
            Some(code),
            "exit code\nstdout: {}\nstderr: {}",
            self.stdout,
            self.stderr
        );
        self
    }

    /// Checks that stdout is exactly `text`.
    #[track_caller]
    pub fn prints(&self, text: &str) -> &Self {
        assert_eq!(self.stdout, text, "stdout\nstderr: {}", self.stderr);
        self
    }

    /// Checks that the run was successful, and that stdout is exactly `text`.
    #[track_caller]
    pub fn answers(&self, text: &str) -> &Self {
        self.exits(0).prints(text)
    }

    /// Checks that stderr contains `text`.
    #[track_caller]
    pub fn says(&self, text: &str) -> &Self {
        assert!(
            self.stderr.contains(text),
            "stderr does not say {text:?}: {}",
            self.stderr
        );
        self
    }

    /// Checks that stdout contains `text`.
    #[track_caller]
    pub fn shows(&self, text: &str) -> &Self {
        has_all(&self.stdout, [text]);
        self
    }

    #[track_caller]
    pub fn does_not_say(&self, text: &str) -> &Self {
        assert!(
            !self.stderr.contains(text),
            "stderr says {text:?}: {}",
            self.stderr
        );
        self
    }

    /// Checks that stderr is empty.
    #[track_caller]
    pub fn is_quiet(&self) -> &Self {
        assert_eq!(self.stderr, "", "stderr");
        self
    }

    /// Checks the format of an error on stderr: `bantam: error: ...` on one line, then `hint: ...`.
    #[track_caller]
    pub fn fails_with_a_hint(&self) -> &Self {
        let mut lines = self
            .stderr
            .lines()
            .skip_while(|line| !line.starts_with("bantam: error: "));
        let error = lines.next().unwrap_or_default();
        let hint = lines.next().unwrap_or_default();
        let good = error.starts_with("bantam: error: ") && hint.starts_with("hint: ");
        assert!(
            good,
            "no `bantam: error: ...` line followed by `hint: ...`: {}",
            self.stderr
        );
        self
    }

    /// Checks the exit code and the format of the error.
    #[track_caller]
    pub fn fails(&self, code: i32) -> &Self {
        self.exits(code).fails_with_a_hint()
    }

    /// Parses stdout as JSON Lines.
    #[track_caller]
    pub fn json_lines(&self) -> Vec<Value> {
        let line = |line| {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("no JSON ({error}): {line:?}"))
        };
        self.stdout.lines().map(line).collect()
    }

    /// Parses stdout as one JSON object on one line.
    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(
            self.stdout.lines().count(),
            1,
            "not one line: {:?}",
            self.stdout
        );
        let value: Value = serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("stdout is not JSON ({error}): {:?}", self.stdout));
        assert!(value.is_object(), "stdout is not an object: {value}");
        value
    }
}
