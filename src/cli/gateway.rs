//! `bantam gateway`: runs Telegram, HTTP, scheduled jobs and the heartbeat until a signal ends it.

use super::args::{Args, Command};
use crate::app;
use crate::config::Env;
use crate::error::Result;

pub(super) const COMMAND: Command = Command::row(
    "gateway",
    "",
    run,
    "run the Telegram bot, the HTTP endpoint, scheduled jobs and the heartbeat",
);

fn run(_: &Args, env: &Env) -> Result<u8> {
    app::gateway::run(env).map(|()| 0)
}
