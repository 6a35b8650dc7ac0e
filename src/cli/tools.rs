//! `bantam tools`: lists the tools of the model.

use super::args::Args;
use super::ui::Ui;
use super::{notice, print, table};
use crate::app::App;
use crate::error::Result;
use crate::redact::Redactor;
use crate::tool::ToolSpec;

pub(super) fn run(app: &App, _ui: &Ui, _: &Args) -> Result<u8> {
    let loaded = app.loaded()?;
    let (tools, missing) = app.tools()?;
    let lines = loaded.warnings.iter().chain(&missing);
    lines.for_each(|line| notice(line));
    let tools = tools.for_agent(Redactor::default());
    let row = |spec: &ToolSpec| {
        [&spec.name, spec.risk.name(), &spec.source, spec.purpose()].map(str::to_owned)
    };
    let rows: Vec<_> = tools.specs().map(row).collect();
    if !loaded.config.tools.exec.enabled {
        notice("exec is disabled (tools.exec.enabled is false)");
    }
    print(&table(&["tool", "risk", "source", "purpose"], &rows)).map(|()| 0)
}
