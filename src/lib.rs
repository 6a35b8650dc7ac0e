//! bantam: a personal AI agent in one small program, and the library that it is made of.
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
//! In Cargo.toml: `bantam`, `serde_json` for settings and schemas, and `serde` with `derive` for the arguments of custom tools. Any
//! model works whose host speaks OpenAI's or Anthropic's API; [`Demo`] needs neither a model nor a network.
//!
//! - An [`Agent`], made by a [`Builder`], runs turns: a [`Request`] goes in, a [`Response`] comes out, [`Event`]s report progress.
//! - [`OpenAi`] and [`Anthropic`] are models; [`Provider`] is the trait of custom ones.
//! - A [`Function`] is a custom tool, [`Tool`] its trait, a [`Registry`] a set of tools. A [`Home`] has the built-in tools in their
//!   sandbox.
//! - A [`Store`] keeps conversations: a [`FileStore`] on disk, a [`MemoryStore`], or a custom one. [`Agent::sessions`] lists them.
//! - [`serve()`] answers the messages of channels; [`channel`] makes one from two functions.
//! - An [`Error`] has a message for people and an [`ErrorKind`] for code.
//!
//! `docs/embedding.md` says more and has a table for people who come from another library. `docs/examples` has a short program for each
//! task. Nothing here is asynchronous: a turn runs on the thread that calls it.

// # Code map
//
// For people who change bantam itself. Embedding programs use the items that are exported below.
//
// Each file or folder is a module with one job. A module uses only modules of lower ranks; those of ranks 0 and 1 also use one another,
// never in a circle (`tests/house.rs` proves it).
//
// | rank | module | job |
// |---|---|---|
// | 6 | `main`, `cli` | arguments to a command; print; exit code. A file for each command; the command line (`args`, `help`, `topics`, `completions`); the standard streams (`term`); a question with its files and what follows from it (`question`, `input`, `attach`, `schema`, `turn`, `printer`), a conversation at the terminal (`repl`, `slash`, its line `editor`); set-up (`onboard`) |
// | 5 | `app` | names concrete types and wires them together: an agent (`mod`, `models`, `factory`), what its configuration opens to tools (`grants`), the gateway (`gateway`, `handler`), the bot (`bot`), a home that is served, by the gateway or by another program (`serving`), attached files (`media`), MCP servers (`mcp`), the `home` of programs with the built-in tools |
// | 4 | `gateway` | the dispatcher (`mod`), what waits in each conversation (`queue`, `semaphore`), how it is answered (`answer`), what a turn may `ask` its owner, what channels have shown (`drain`), background `tasks`, the `clock` that adds runs of jobs, what a run is (`run`), posts to chats (`poster`), the turns of the HTTP `endpoint`, the log of turns (`turn_log`), what ends and restarts it (`monitor`), the status file (`status`) |
// | 3 | `agent` | one turn as a value with states (`turn`), where one stands that was cut short (`resume`), how it ends (`turn_end`), what its parts share (`turn_context`), one request, its tools and its cost (`ask`), the calls of a reply (`calls`, `loop_detector`), subagents and background tasks (`task`), the system prompt (`prompt`), room in the model's window (`compact`, `history`), what tools show (`media`), the `builder` |
// | 3 | `doctor` | checks this installation (`home`, `model`, `bot`, `sandbox`), and tries to break out of the sandbox (`break_out`) |
// | 2 | `provider` | asking a model: retries and fallbacks (`chain`), one `host`, its refusals (`refusal`, `waits`) and what is remembered of them (`host_facts`), what is `outgoing` in OpenAI's API (`openai`) and Anthropic's (`anthropic`); the way back (`response`, `reply`, `lenient`, `thoughts`, `text_calls`), lists of models and the default of each (`catalog`, `ollama`), other endpoints than chat (`endpoint`), models that a program names in its `code`, the `demo` |
// | 2 | `telegram` | the bot: the Bot API (`api`), the long poll (`poll`), reading updates (`update`) and their texts (`marked`), downloads (`incoming`), users whom it does not know (`strangers`), what the gateway does in chats (`chats`, `activity`), delivery (`send`, `upload`, what a full disk did not take: `held`) and that of other commands (`deliver`), questions to the owner (`ask`), the choice of a model (`choice`) |
// | 2 | `http_api` | the agent behind OpenAI's chat API: the listener (`mod`), who may use it (`access`), how many at a time (`connections`), one connection (`connection`), what a client sees of its turn (`output`), HTTP/1.1 (`request`, `response`), the API (`chat`) |
// | 2 | `tool` | the trait (`mod`), tools that are functions (`function`), the registry that finds tools and checks calls (`registry`, `names`, `schema`, `repair`), a checked `call`, its views and its result, long results (`pages`), what the built-in tools share (`workshop`), tools that a `client` runs; one file for each family of tools, and the search of notes by `meaning` |
// | 1 | `config` | the declaration of all settings (`settings`), which are read in layers (`load`); the `path` of a setting, changes of the file (`edit`), ranges (`check`), API `keys`, `vendors`, the choice of a model (`models`), the HTTP `proxy` |
// | 1 | `http` | makes every HTTP request (`client`, `tls`, `half_closed`, `resolver`), and says what failed (`errors`) |
// | 1 | `mcp` | the tools of other people's servers: one server (`mod`), the protocol (`client`), how messages travel (`stdio`, `http`), what its tools are (`list`), what it may not run (`launch`) |
// | 1 | `web` | fetches pages (`mod`, `address`), asks search engines (`search`), and inside a worker process makes Markdown of what came (`read`, `charset`, `tokens`, `entities`, `page`) |
// | 1 | `worker` | runs one job in a process without secrets: the caller (`mod`, `client`, `output`), the process (`process`), its commands (`exec`, `denylist`), what they leave behind (`reaper`, `processes`), a server that outlives calls (`serve`), the text of a `pdf`, the `notes` |
// | 1 | `sandbox` | confines a worker process: `namespaces` and mounts (`root`, `paths`), or Landlock (`landlock`, `all_except`); `seccomp` |
// | 1 | `files` | the file tools, inside a worker process: open grants and dispatch (`mod`), `read` and `lines`, `list`, `grep` and `glob`, `edit` and `replace`, encodings (`text`), the agent's `notes`, `incoming` files; how a file changes safely (`atomic`) |
// | 1 | `proxy` | the guarded network of a command: the proxy (`mod`) and its socket in the sandbox (`listener`) |
// | 1 | `session` | conversations on disk (`files`, their `lines`, how they are read again by `replay`, the `media` beside them), or in `memory`; what came to a chat from elsewhere (`note`); what programs keep with one (`values`), the trait of stores (`store`), waiting for a locked one (`lock`), files as they were before the last turn (`versions`); listing, showing, resetting and deleting (`archive`), finding words (`search`) |
// | 1 | `outbox` | messages to chats, kept until they are delivered: at least once |
// | 1 | `markdown` | the parser of Markdown (`blocks`, `inline`), and its writers: Telegram's messages (`html`, `table`, `styled`, `split`) and the `terminal` |
// | 1 | `skills` | skills in the Agent Skills format: reads them (`mod`, `front`), fetches them (`source`), installs and removes them (`install`) |
// | 1 | `usage` | records model calls and their cost, and enforces the budget of a day and of a message (`budget`) |
// | 1 | `cron` | scheduled jobs: when they run (`schedule`), one `job`, a `new` one, the `file` that holds them, what is done with them (`jobs`), the record of `runs`, the `heartbeat` |
// | 0 | `message`, `error` | types that every module uses |
// | 0 | `bus` | messages and the `inbox` that keeps them until they are answered, events and who reads them late (`events`), a channel of two functions (`pair`) |
// | 0 | `secret` | a secret that cannot be printed |
// | 0 | `redact` | removes secrets from text: configured keys, known shapes, values of telling names |
// | 0 | `template` | the files a new home starts with |
// | 0 | `worker/protocol` | the messages between bantam and a worker process |
// | 0 | `access` | whether a path may be touched: what the configuration opens (`grants`), a `grant` of the host, found again where it was, other paths of the home (`mounts`), and files below a held directory (`beneath`) |
// | 0 | `ssrf` | the hosts that a model may make this program connect to |
// | 0 | `storage` | directories and atomic replacement (`mod`), files below a directory that others can write (`below`), append-only logs and what of them is synced when (`journal`), their segments (`segments`), what is not done with (`queue`), locks (`lock`) |
// | 0 | `json` | reads JSON that others wrote, within bounds |
// | 0 | `cancel`, `child`, `test_speed`, `inflate`, `paths`, `sse`, `text`, `sys`, `timezone`, `notify`, `log` | one resource each |
//
// # A message's life
//
// `telegram/poll` → `bus/inbox` (on disk) → `gateway/queue` → `gateway/answer`, which begins it (on disk), fetches its files
// (`telegram/chats`), runs it (`agent/turn`: session, model, tools) and ends it by its answer (`outbox`, on disk) →
// `telegram/send`. The marks of what was delivered (`Outbox::done`, `Outbox::progress`) are not synced before the next message is
// posted, so a power cut may repeat what was sent since the last post.
//
// # Where a new thing goes
//
// - **A tool**: one that works on files, with all its arguments from the model, is a variant of `FileJob` in `worker/protocol.rs`, its arm and
//   file in `files/`, and a spec in `tool/files.rs` under the variant's name in `snake_case`; no more. Any other is a file in `tool/`
//   with a function that makes it from the `Workshop`, and a line in `configured` of `app/home.rs`; what it does in the workspace is a job in `worker/protocol.rs`, too. Tests
//   that list all tools: `tests/it/discipline.rs` and, for one that takes a path, `tests/jail/refusal.rs`.
// - **A provider**: a file in `provider/` with a body and a reader, a protocol and its vendors in `config/vendors.rs`, and its
//   arms in `provider/host.rs`. A vendor that speaks the OpenAI API is one line of that table.
// - **A channel**: a module of rank 2 that implements `bus::Channel`, handed to the dispatcher by `app/gateway.rs`.
// - **A setting**: a line in `config/settings.rs`, handed on by `app/` as an argument to what uses it.
//   `BANTAM_BLESS=1 cargo test --lib config::tests -- --test-threads 1` writes it into docs/settings.md.
// - **A command**: a file in `cli/` and a line in its table.

#![warn(missing_docs)]
// Not in tests, which share modules with the test programs.
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
mod sys;
mod telegram;
mod template;
mod test_speed;
mod text;
mod timezone;
mod tool;
mod usage;
mod web;
mod worker;

pub use agent::{
    Agent, Budget, Builder, Cancel, CancelReason, Confirm, Decision, History, Hook, Limits,
    PendingCall, ReceivedMessage, Request, Steering, TaskReport, Tasks, count_tokens, fill,
};
pub use app::{Home, serve};
pub use bus::{
    CallReport, Channel, Command, Event, EventLog, Inbound, Inbox, Origin, Outbound, Response,
    Status as StreamStatus, TurnStop, channel,
};
#[doc(hidden)]
pub use cli::main;
pub use error::{Context, Error, Kind as ErrorKind, Result};
pub use message::{
    Media, Message, Price, Reply, Stop, ToolCall, ToolResult, Usage, User, UserKind,
};
pub use provider::demo::Demo;
pub use provider::{
    Anthropic, Chain, OpenAi, Options as ModelOptions, Provider, ProviderError,
    Request as ModelRequest, Retry, Sampling, System, ToolOffer,
};
pub use session::{
    Durability, FileStore, Guard, Line, Loaded, MemoryStore, Session, SessionInfo, Store, Values,
    key as session_key,
};
pub use tool::{CallContext, Function, Registry, Risk, Task, Tool, ToolOutput, ToolSpec};
pub use worker::init;

// What fuzz tests and bounds on time need.
#[cfg(test)]
#[path = "../tests/support/computed.rs"]
mod computed;
#[cfg(test)]
#[path = "../tests/support/rng.rs"]
mod rng;

// Its programs compile.
#[cfg(doctest)]
#[doc = include_str!("../docs/embedding.md")]
struct Embedding;
