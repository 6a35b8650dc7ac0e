//! `bantam tools`: lists what the model can call.

use std::sync::Arc;

use super::args::{Args, Command};
use super::{print, tell};
use crate::app;
use crate::config::{self, Env};
use crate::cron::Jobs;
use crate::error::Result;
use crate::secret::Redactor;
use crate::text::one_line;
use crate::tool::Registry;

pub(super) const COMMAND: Command = Command {
    name: "tools",
    words: "",
    about: "list every tool with its risk (safe: it only reads) and source",
    flags: &[],
    run,
};

fn run(_: &Args, env: &Env) -> Result<u8> {
    let home = config::home(env)?;
    let file = config::read(&home)?;
    let loaded = config::load_for(&home, file.as_deref(), env, Vec::new())?;
    for line in &loaded.warnings {
        tell(&format!("bantam: {line}"));
    }
    let tools = Registry::new(
        app::tools(
            &Arc::new(app::hands(&home, &loaded.config, env)?),
            &home,
            &loaded.config,
            env,
            Some(Jobs::new(home.clone(), env)),
        ),
        Redactor::default(),
    )?;
    let mut page = String::new();
    for spec in tools.specs() {
        let what = one_line(spec.purpose(), 100);
        let (name, risk, source) = (&spec.name, spec.risk.name(), one_line(&spec.source, 40));
        page.push_str(&format!("{name:<14} {risk:<6}  {source:<8}  {what}\n"));
    }
    if !loaded.config.tools.exec.enabled {
        tell("bantam: exec is disabled (tools.exec.enabled in config.json)");
    }
    print(&page).map(|()| 0)
}
