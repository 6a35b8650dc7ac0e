//! `bantam tools`: lists the tools of the model.

use std::sync::Arc;

use super::args::{Args, Command};
use super::{load, notice, print, table};
use crate::app::{self, Parts};
use crate::config::Env;
use crate::error::Result;
use crate::mcp::Servers;
use crate::redact::Redactor;
use crate::tool::ToolSpec;

pub(super) const COMMAND: Command = Command::row(
    "tools",
    "",
    run,
    "list all tools with their risk and source (safe tools only read)",
);

fn run(_: &Args, env: &Env) -> Result<u8> {
    let (home, loaded) = load(env)?;
    let parts = Parts {
        home: &home,
        config: &loaded.config,
        env,
    };
    let (tools, missing) =
        app::configured(&Arc::new(app::workers(parts)?), parts, &Servers::default())?;
    loaded
        .warnings
        .iter()
        .chain(&missing)
        .for_each(|line| notice(line));
    let tools = tools.for_agent(Redactor::default());
    let row = |spec: &ToolSpec| {
        [&spec.name, spec.risk.name(), &spec.source, spec.purpose()].map(str::to_owned)
    };
    let rows: Vec<_> = tools.specs().map(row).collect();
    if !loaded.config.tools.exec.enabled {
        notice("exec is disabled (tools.exec.enabled in config.json)");
    }
    print(&table(&["tool", "risk", "source", "purpose"], &rows)).map(|()| 0)
}
