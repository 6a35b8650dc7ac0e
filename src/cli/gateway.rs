//! `bantam gateway`: runs Telegram, HTTP, scheduled jobs and the heartbeat until a signal ends it.

use super::args::{Args, Subcommand, commands};
use super::ui::Ui;
use crate::app::App;
use crate::error::Result;

pub(super) const COMMANDS: &[Subcommand] = commands! {
    InHome(run) include_str!("texts/gateway.txt")
};

fn run(app: &App, _ui: &Ui, _: &Args) -> Result<u8> {
    crate::gateway::run(app).map(|()| 0)
}
