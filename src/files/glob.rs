//! Glob patterns for file names: `*`, `?`, `[a-z]`, `[!a-z]`, `{a,b}`, and `**` for any number of directories.

use regex_lite::{Regex, escape};

use crate::error::{Error, Result};

pub(super) struct Glob {
    regex: Regex,
    /// Whether the pattern has a slash, so that it matches whole paths relative to the search's start.
    whole_path: bool,
}

/// Glob syntax after [`escape`], and the equivalent regular expression. Longer forms come first.
const SYNTAX: [(&str, &str); 10] = [
    (r"\*\*/", "(?:.*/)?"),
    (r"\*\*", ".*"),
    (r"\*", "[^/]*"),
    (r"\?", "[^/]"),
    (r"\[!", "[^"),
    (r"\[", "["),
    (r"\]", "]"),
    (r"\-", "-"),
    (r"\{", "(?:"),
    (r"\}", ")"),
];

impl Glob {
    pub(super) fn new(glob: &str) -> Result<Self> {
        let glob = glob.trim_start_matches("./").trim_start_matches('/');
        let mut pattern = SYNTAX.iter().fold(escape(glob), |pattern, (from, to)| {
            pattern.replace(from, to)
        });
        if glob.contains('{') {
            pattern = pattern.replace(',', "|");
        }
        let regex = Regex::new(&format!("(?s)^(?:{pattern})$"));
        let regex = regex.map_err(|e| Error::failed(format!("invalid glob: {e}")))?;
        Ok(Self {
            regex,
            whole_path: glob.contains('/'),
        })
    }

    pub(super) fn matches(&self, path: &str, name: &str) -> bool {
        self.regex
            .is_match(if self.whole_path { path } else { name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_are_about_names_and_with_a_slash_about_paths() {
        // A pattern, and paths that match it or do not.
        for row in r"
*.rs | a.rs src/b.rs .rs | a.rsx rs a.rs/x
src/*.rs | src/a.rs | a.rs src/x/a.rs
./src/** | src/a src/x/y.txt | a xsrc/a
**/test_?.py | test_a.py x/y/test_1.py | test_.py x/test_10.py
*.{md,txt} | a.md x/b.txt | a.mdx a.{md,txt}
[a-c]*[!0-9] | apple bx | a1 dog
a+b(1).txt | a+b(1).txt | aab1.txt
a,b | a,b | a
图* | 图片.png | 片图"
            .lines()
            .skip(1)
        {
            let cells: Vec<&str> = row.split(" | ").collect();
            let glob = Glob::new(cells[0]).unwrap();
            let matches = |path: &str| glob.matches(path, path.rsplit('/').next().unwrap());
            let [matching, others] = [cells[1], cells[2]].map(|paths| paths.split(' '));
            for path in matching {
                assert!(matches(path), "{path}");
            }
            for path in others {
                assert!(!matches(path), "{path}");
            }
        }
        assert!(Glob::new("[").is_err() && Glob::new("{a").is_err());
    }
}
