//! bantam: a personal AI agent in one small program, and the library behind it.
//!
//! ```no_run
//! use bantam::{Agent, Home, OpenAi};
//! use serde_json::json;
//!
//! fn main() -> bantam::Result<()> {
//!     bantam::init(); // the tools below run in processes of this program
//!     let home = Home::at("agent-home", &json!({}))?;
//!     let agent = Agent::builder()
//!         .provider(OpenAi::new("http://localhost:11434/v1", "", "qwen3:4b"))
//!         .tools(home.files()?)
//!         .tools(home.exec()?)
//!         .build()?;
//!     println!("{}", agent.ask("What is in my workspace?")?);
//!     Ok(())
//! }
//! ```
//!
//! In Cargo.toml: `bantam`, `serde_json` for settings and schemas, and `serde` with `derive` for the arguments of custom tools.
//! Models on any host with an OpenAI or Anthropic API work; [`Demo`] needs neither a model nor a network.
//!
//! - An [`Agent`], made by a [`Builder`], runs turns. It takes a [`Request`], returns a [`Response`] and reports [`Event`]s.
//! - [`OpenAi`] and [`Anthropic`] make models; [`Provider`] is the trait of custom ones.
//! - A [`Function`] is a custom tool, a [`Registry`] a set of tools. A [`Home`] has sandboxed built-in tools.
//! - A [`Store`] saves conversations: a [`FileStore`], a [`MemoryStore`], or a custom one. [`Agent::sessions`] lists them.
//! - [`serve()`] answers the messages of channels; [`Channel`] is their trait.
//! - An [`Error`] has a message for people and an [`ErrorKind`] for code.
//!
//! `docs/embedding.md` has the details and a table for users of other libraries. `docs/examples` has a short program for each
//! task. The API is synchronous, so a turn runs on the calling thread.

// # Code map
//
// For contributors. Embedding programs use the items that are exported below.
//
// Each file or folder is a module with one job. A module uses only modules of lower ranks; modules of ranks 0 and 1 also use
// one another, but never in a circle (checked by `tests/house.rs`).
//
// | rank | module | job |
// |---|---|---|
// | 6 | `main`, `cli` | arguments to a command; print; exit code. A file for each command; the command line (`args`, `help`, `topics`, `completions`; their texts are files in `texts`); the standard streams and the terminal (`ui`); a question with its files and its answer (`question`, `input`, `attach`, `schema`), a conversation at the terminal (`repl`, `slash`, its line `editor`); set-up (`onboard`) |
// | 5 | `gateway` | the dispatcher (`mod`), how a message is answered (`answer`) or a command is run (`commands`), questions of a turn to its owner (`approval`), how channels are served (`serving`) and get their texts (`deliver`), `reports` of background tasks, the `clock` that adds runs of jobs, a job's `run`, the turns of the HTTP `endpoint`, the log of turns (`turn_log`), the gateway (`start`, its `handler`, its `shutdown`, its restart with a changed configuration in `reload`), `checks` of jobs |
// | 5 | `doctor` | checks this installation (`home`, `model`, `bot`, `sandbox`), and tries to break out of the sandbox (`break_out`) |
// | 4 | `app` | names concrete types and wires them together: a home and its agents (`mod`), the chains of `models`, the `tools`, the `workspace`, the grants of its configuration (`grants`), changes of a `conversation`, what a user asks about a home (`facts`), the status file of its gateway (`status`), the bot (`bot`), attached files (`media`), MCP servers (`mcp`) |
// | 3 | `agent` | one turn as a state machine (`turn`) with its requests (`ask`), its calls (`calls`, `loop_detector`), its compaction (`compact`, `history`) and its end (`end`), the state of an interrupted one (`resume`), subagents and background tasks (`task`), the system prompt (`prompt`), limits of media from tools (`media`), the `request` of a turn, the choice among the `models`, the `builder` |
// | 2 | `provider` | model requests: retries and fallbacks (`chain`), one `host`, the `body` of a request in OpenAI's APIs (`openai`, `responses`) and Anthropic's (`anthropic`), a `refusal` and the `facts` that it teaches; the way back (`response`, `reply`, `values`, `thoughts`, `text_calls`), lists of models and their defaults (`catalog`, `ollama`), endpoints other than chat (`endpoint`), models with the `options` of a program, the `demo` |
// | 2 | `telegram` | the bot: the Bot API (`api`), the long poll (`poll`), reading updates (`update`) and formatted text (`marked`), downloads (`incoming`), unknown users (`strangers`) and their `admission`, actions of the gateway in chats (`chats`, `activity`), delivery (`send`, `upload`) and the delivery of other commands (`deliver`), questions to the owner (`ask`) |
// | 2 | `http_api` | the agent behind OpenAI's chat API: the listener (`mod`), authorization (`access`), the connection limit (`connections`), the limit of turns (`room`), one connection and the output of its turn (`connection`), HTTP/1.1 (`request`, `response`), the API (`chat`) |
// | 2 | `tool` | the trait (`mod`), tools that are functions (`function`), the registry that finds tools and checks calls (`registry`, `names`, `fit`, `schema`, `repair`), a checked `call`, its views and its result, the limit of results (`limit`), tools that a `client` runs; one file for each family of tools, and the search of notes by `meaning` |
// | 1 | `config` | the declaration of all settings (`settings`), which are read in layers (`load`); the `path` of a setting, changes of the file (`edit`), ranges (`check`), API `keys`, `vendors`, the choice of a model (`models`), the HTTP `proxy` |
// | 1 | `http` | makes every HTTP request (`client`, `tls`, `half_closed`, `resolver`), and explains failures (`errors`) |
// | 1 | `mcp` | the tools of external MCP servers: one server (`mod`), the protocol (`client`), its transports (`stdio`, `http`), the server's list of tools (`list`), programs that it may not run (`launch`) |
// | 1 | `web` | fetches pages (`mod`, `address`), asks search engines (`search`), and inside a worker process converts responses to Markdown (`read`, `charset`, `tokens`, `entities`, `page`) |
// | 1 | `worker` | runs one job in a process without secrets: the caller (`mod`, `client`, `output`), the process (`process`), its commands (`exec`, `denylist`), their leftover processes (`reaper`), the `protocol` with the caller, a server that outlives calls (`serve`), the text of a `pdf`, the `notes` |
// | 1 | `sandbox` | confines a worker process: `namespaces` and mounts (`root`, `paths`), or Landlock (`landlock`, `all_except`); `seccomp` |
// | 1 | `files` | the file tools, inside a worker process: open grants and dispatch (`mod`), `read` and `lines`, `list`, `grep` and `glob`, `edit` and `replace`, encodings (`text`), the agent's `notes`, `incoming` files; how a file changes safely (`atomic`) |
// | 1 | `proxy` | the guarded network of a command: the proxy (`mod`) and its socket in the sandbox (`listener`) |
// | 1 | `session` | conversations on disk (`files`, the `entries` of their lines and their `replay`, an `open` one, `media` files), or in memory; messages to a chat from elsewhere (`deferred`); values that programs store with a conversation (`values`), the trait of stores (`store`), waiting for a locked conversation (`lock`), files as they were before the last turn (`versions`); listing, showing, resetting and deleting (`archive`), finding words (`search`) |
// | 1 | `outbox` | messages to chats, stored until they are delivered: at least once |
// | 1 | `markdown` | the parser of Markdown (`blocks`, `inline`), and its writers: Telegram's messages (`html`, `table`, `styled`, `split`) and the `terminal`, whose lines `wrap` |
// | 1 | `skills` | skills in the Agent Skills format: reads them (`mod`, `front`), fetches them (`source`), installs and removes them (`install`) |
// | 1 | `usage` | records model calls and their cost, and enforces the budget of a day and of a message (`budget`) |
// | 1 | `cron` | scheduled jobs: when they run (`schedule`), one `job`, a `new` one, their `file`, changes to them (`jobs`), the record of `runs`, the `heartbeat` |
// | 0 | `message`, `error` | types that every module uses |
// | 0 | `bus` | messages and the `inbox` that stores them until they are answered, what of them is `waiting` and may begin, events, the trait of channels |
// | 0 | `secret` | a secret that cannot be printed |
// | 0 | `redact` | removes secrets from text: configured keys, known shapes, values of telling names |
// | 0 | `template` | the files a new home starts with |
// | 0 | `worker/protocol` | the messages between bantam and a worker process |
// | 0 | `access` | whether a path may be touched: the grants of the configuration (`grants`), a `grant` of the host, found again where it was, other paths of the home (`mounts`), and files in an open directory (`beneath`) |
// | 0 | `ssrf` | the hosts that a model may make this program connect to |
// | 0 | `storage` | directories and atomic replacement (`mod`), files in a directory that others can write (`below`), append-only logs and when they are synced (`journal`), their segments (`segments`), unfinished items (`queue`), locks (`lock`) |
// | 0 | `json` | reads untrusted JSON, within bounds |
// | 0 | `cancel`, `child`, `sync`, `test_speed`, `inflate`, `paths`, `sse`, `text`, `sys`, `timezone`, `notify`, `log` | one resource each |
// | 0 | `tries` | counts the tries of a request, and what is waited before each |
//
// # A message's life
//
// `telegram/poll` → `bus/inbox` (on disk) → `bus/waiting` → `gateway/answer`, which begins it (on disk), fetches its files
// (`telegram/chats`), runs it (`agent/turn`: session, model, tools) and ends it by its answer (`outbox`, on disk) →
// `telegram/send`. Delivery marks (`Outbox::tried`) are not synced before the next message is posted, so a
// power cut may repeat messages that were sent since the last post.
//
// # Where a new thing goes
//
// - **A tool**: a file tool that gets all its arguments from the model is a variant of `FileAction` in `worker/protocol.rs`, its
//   arm and file in `files/`, and a spec in `tool/files.rs` under the variant's name in `snake_case`. Any other tool is a file
//   in `tool/` with a function that makes it from the settings and workers, and a line in `tools` of `app/tools.rs`; its work in the
//   workspace is also a job in `worker/protocol.rs`. Tests that list all tools: `tests/it/discipline.rs`,
//   `tests/jail/refusal.rs` (those with a path).
// - **A provider**: a file in `provider/` with a body and a reader, a protocol and its vendors in `config/vendors.rs`, and its
//   arms in `provider/host.rs`. A vendor that speaks the OpenAI API is one line of that table.
// - **A channel**: a module of rank 2 that implements `bus::Channel`, handed to the dispatcher by `gateway/start.rs`.
// - **A setting**: a line in `config/settings.rs`, passed on by `app/` as an argument. `BANTAM_BLESS=1 cargo test --lib
//   config::tests -- --test-threads 1` writes it into docs/settings.md.
// - **A command**: a file in `cli/` and a line in its table.

#![warn(missing_docs)]
// Tests are exempt, because they share modules with the test programs.
#![cfg_attr(not(test), deny(unreachable_pub))]

mod access;
mod agent;
mod app;
mod bus;
mod cancel;
mod child;
mod cli;
mod config;
mod cron;
mod doctor;
mod error;
mod files;
mod gateway;
mod http;
mod http_api;
mod inflate;
mod json;
mod log;
mod markdown;
mod mcp;
mod message;
mod notify;
mod outbox;
mod paths;
mod provider;
mod proxy;
mod redact;
mod sandbox;
mod secret;
mod session;
mod skills;
mod sse;
mod ssrf;
mod storage;
mod sync;
mod sys;
mod telegram;
mod template;
mod test_speed;
mod text;
mod timezone;
mod tool;
mod tries;
mod usage;
mod web;
mod worker;

pub use agent::{
    Agent, Budget, Builder, Cancel, CancelReason, Confirm, Decision, History, Hook, Limits,
    Request, Steering, TaskReport, Tasks, fill,
};
pub use app::App as Home;
pub use bus::{CallReport, Channel, Command, Event, Inbound, Inbox, Origin, Response, TurnStop};
#[doc(hidden)]
pub use cli::main;
pub use error::{Context, Error, Kind as ErrorKind, Result};
pub use gateway::serve;
pub use message::{
    Media, Message, Price, Reply, Stop, ToolCall, ToolResult, Usage, User, UserKind,
};
pub use provider::demo::Demo;
pub use provider::{
    Anthropic, Chain, Host, OpenAi, Options as ModelOptions, Provider, ProviderError,
    Request as ModelRequest, Retry, Sampling, Sink, System, ToolOffer,
};
pub use session::{
    Durability, FileStore, Guard, Line, MemoryStore, Session, SessionInfo, Store, Values,
    key as session_key,
};
pub use tool::{CallContext, Function, PendingCall, Registry, Risk, Task, ToolOutput, ToolSpec};
pub use worker::init;

// Of the tests: limits on time, random numbers, temporary directories.
#[cfg(test)]
#[path = "../tests/support/computed.rs"]
mod computed;
#[cfg(test)]
#[path = "../tests/support/rng.rs"]
mod rng;
#[cfg(test)]
#[path = "../tests/support/test_dir.rs"]
mod test_dir;

// Compiles the programs of that page.
#[cfg(doctest)]
#[doc = include_str!("../docs/embedding.md")]
struct Embedding;
