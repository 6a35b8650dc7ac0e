//! What a local server runs must not lie where tools can change it: whoever writes there would have the server's keys and its
//! network.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::access::Resolved;
use crate::child::PATH;
use crate::config::McpServer;
use crate::error::{Error, Result};
use crate::text::one_line;

/// Variables that say where a program or the language it is written in finds code, as lists with colons between.
const CODE_PATHS: [&str; 10] = [
    "PATH",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONSTARTUP",
    "VIRTUAL_ENV",
    "NODE_PATH",
    "RUBYLIB",
    "PERL5LIB",
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
];

/// A tree that tools can change: where it is, without links, and how the configuration names it.
#[derive(Clone)]
pub(crate) struct Changeable {
    pub real: PathBuf,
    pub setting: String,
}

/// What an entry starts, and where.
pub(crate) struct Launch<'a> {
    pub name: &'a str,
    pub entry: &'a McpServer,
    /// The environment that the entry declares, with variables replaced.
    pub env: &'a [(String, String)],
    pub working_dir: &'a Path,
    pub changeable: &'a [Changeable],
    /// One of them, which the sandbox shows to some servers only.
    pub workspace: &'a Path,
    /// Where a program may be for the sandbox to show it.
    pub is_shown: &'a dyn Fn(&Path) -> bool,
    pub user_home: Option<&'a Path>,
}

/// Interpreters of interpreters that are looked at.
const MAX_INTERPRETERS: usize = 4;
/// The longest line that names an interpreter, in bytes.
const MAX_LINE: usize = 256;

impl Launch<'_> {
    /// # Errors
    /// The program, what interprets it, a file among its arguments, its working directory, or a place where it looks for code
    /// lies in a tree that tools can change, or behind a link there; or a directory among its arguments is in the workspace,
    /// which its sandbox does not show. This tells the user early of what cannot work; it is not what protects the keys. Programs
    /// find code in more ways than can be listed, so servers with variables or network do not see the workspace at all.
    pub(crate) fn check(&self) -> Result<()> {
        self.apart("cwd", self.working_dir)?;
        for (name, value) in self.env {
            if CODE_PATHS.contains(&name.as_str()) {
                for dir in value.split(':') {
                    self.apart(&format!("env.{name}"), &self.working_dir.join(dir))?;
                }
            }
        }
        if let Some(program) = self.program() {
            self.apart("command", &program)?;
        }
        self.is_visible()?;
        let places = self.directories();
        for argument in &self.entry.args {
            for place in &places {
                self.argument(argument, place)?;
            }
        }
        let named = &places[1..];
        named.iter().try_for_each(|dir| self.is_shown_to_it(dir))
    }

    /// The program, where it is found.
    fn program(&self) -> Option<PathBuf> {
        let command = &self.entry.command;
        if command.contains('/') {
            return Some(self.working_dir.join(command));
        }
        let declared = self.env.iter().find(|(name, _)| name == "PATH");
        let path = declared.map_or(PATH, |(_, value)| value.as_str());
        path.split(':')
            .map(|dir| self.working_dir.join(dir).join(command))
            .find(|file| file.is_file())
    }

    /// # Errors
    /// The program, or what interprets it, is where its sandbox does not show it, as the interpreter of a virtual environment often
    /// is.
    fn is_visible(&self) -> Result<()> {
        let programs = self.program().map_or_else(Vec::new, started);
        for (n, program) in programs.iter().enumerate() {
            if n > 0 {
                self.apart("command", program)?;
            }
            let real = Resolved::of(program).real;
            if real.is_file() && !(self.is_shown)(&real) {
                let name = self.name;
                let tree = tree_of(&real);
                let (command, shown) = (&self.entry.command, real.display());
                let what = if Path::new(command) == real {
                    format!("its sandbox does not show {shown}")
                } else {
                    format!("{command} leads to {shown}, which its sandbox does not show")
                };
                return Err(Error::config(what).hint(if is_wide(tree, self.user_home) {
                    MOVE_IT.to_owned()
                } else {
                    let tree = tree.display();
                    format!("add {tree} to mcpServers.{name}.read (--read {tree})")
                }));
            }
        }
        Ok(())
    }

    /// Where relative arguments may be meant: the working directory, and directories among the arguments.
    fn directories(&self) -> Vec<PathBuf> {
        let mut places = vec![self.working_dir.to_owned()];
        let named = self.entry.args.iter().map(|word| value_of(word));
        places.extend(
            named
                .filter(|word| Path::new(word).is_absolute())
                .map(PathBuf::from)
                .filter(|path| path.is_dir()),
        );
        places
    }

    /// A directory is what a server works with. A file that is not there yet may be there at the next start, and what is a link
    /// or a pipe now may be a file then.
    fn argument(&self, argument: &str, place: &Path) -> Result<()> {
        let word = value_of(argument);
        let path = place.join(word);
        let is_meant = Path::new(word).is_absolute() || path.symlink_metadata().is_ok();
        if word.is_empty() || !is_meant || path.is_dir() {
            return Ok(());
        }
        self.apart("args", &path)
    }

    /// # Errors
    /// It is in the workspace, which this server is not shown.
    fn is_shown_to_it(&self, dir: &Path) -> Result<()> {
        let real = Resolved::of(dir).real;
        if !real.starts_with(self.workspace) || (self.is_shown)(&real) {
            return Ok(());
        }
        let (name, shown) = (self.name, one_line(&real.to_string_lossy(), 200));
        Err(Error::config(format!(
            "mcpServers.{name}.args: {shown} is in the workspace, which a server with variables or network sees only if its \
             entry names it"
        ))
        .hint(format!(
            "add {shown} to mcpServers.{name}.write (--write {shown}) if its keys and its network may be used by what is \
             written there"
        )))
    }

    fn apart(&self, part: &str, path: &Path) -> Result<()> {
        let found = Resolved::of(path);
        for entry in found.links.iter().chain([&found.real]) {
            let tree = self
                .changeable
                .iter()
                .find(|tree| entry.starts_with(&tree.real));
            if let Some(tree) = tree {
                let name = self.name;
                let shown = one_line(&path.to_string_lossy(), 200);
                return Err(Error::config(format!(
                    "mcpServers.{name}.{part}: {shown} lies in {}, which tools can change ({}): what they write there would run \
                     with this server's keys and network",
                    tree.real.display(),
                    tree.setting
                ))
                .hint(format!(
                    "move it elsewhere; state/mcp/{name} in bantam's home is the server's own directory"
                )));
            }
        }
        Ok(())
    }
}

/// What an argument may name: itself, or what follows the `=` of a flag.
fn value_of(argument: &str) -> &str {
    match argument.split_once('=') {
        Some((flag, value)) if flag.starts_with('-') => value,
        _ => argument,
    }
}

/// A program, what interprets it, what interprets that, ...
fn started(program: PathBuf) -> Vec<PathBuf> {
    let mut programs = Vec::new();
    let mut next = Some(program);
    while let Some(program) = next.filter(|_| programs.len() < MAX_INTERPRETERS) {
        let real = Resolved::of(&program).real;
        // One that is not there yet may be there at the next start.
        next = if real.is_file() {
            interpreter(&real)
        } else {
            None
        };
        programs.push(program);
    }
    programs
}

/// What to do with a program beside which there is more than a server may read.
const MOVE_IT: &str = "move its program into a directory of its own, and add it from there";

/// Whether this is a tree that no server is shown for the sake of its program: the user's home, or one that may hold anything.
fn is_wide(tree: &Path, user_home: Option<&Path>) -> bool {
    tree.components().count() <= 2 || user_home.is_some_and(|home| home.starts_with(tree))
}

/// What to show of a program: all that is installed with it.
fn tree_of(program: &Path) -> &Path {
    let dir = program.parent().unwrap_or(program);
    match dir.parent() {
        // Beside them are a user's keyrings, and the data of all their programs.
        _ if dir.ends_with(".local/bin") => dir,
        // A user's own programs are beside everything else of theirs.
        Some(above) if dir.ends_with("bin") && above.components().count() > 3 => above,
        _ => dir,
    }
}

/// The program that a script names in its first line.
fn interpreter(script: &Path) -> Option<PathBuf> {
    let mut start = Vec::new();
    let file = fs_err::File::open(script).ok()?;
    file.take(MAX_LINE as u64).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?;
    let line = line.split(|byte| *byte == b'\n').next()?;
    let text = String::from_utf8_lossy(line);
    let program = text.split_whitespace().next()?;
    Path::new(program)
        .is_absolute()
        .then(|| PathBuf::from(program))
}
