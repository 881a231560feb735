//! Verbs that need no node: `check`, `completions`, `man`.

use std::{
    fs,
    io::{self, IsTerminal},
    path::Path,
};

use ops::{
    cli::{self, Check, Completions, Man},
    config::Config,
};

use super::{CommandError, print};
use crate::daemon::secrets;

/// Prints every problem of a file: as JSON on standard output, or for people on standard error.
pub(super) fn check(check: &Check) -> Result<(), CommandError> {
    let file = check.config.display().to_string();
    let content = fs::read(&check.config).map_err(failed(format!("cannot read {file}")))?;
    let (problems, good) = match Config::parse(&check.config, &content) {
        Ok(checked) => (checked.warnings, Some(checked.config)),
        Err(problems) => (problems, None),
    };
    if check.json {
        print(&format!("{}\n", problems.to_json()))?;
    } else {
        eprint!("{}", problems.render(io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none()));
    }
    match good {
        Some(_) if check.json => Ok(()),
        Some(config) => {
            for problem in secrets::problems(&config) {
                eprintln!("warning: on this machine, {problem:#}");
            }
            let [nodes, resources] = [config.nodes.len(), config.resources.len()];
            print(&format!("{file} is good: {nodes} node(s), {resources} resource(s)\n"))
        }
        None => Err(CommandError::Configuration { file }),
    }
}

pub(super) fn completions(completions: &Completions) -> Result<(), CommandError> {
    print(&String::from_utf8_lossy(&cli::completions(completions.shell)))
}

pub(super) fn man(man: &Man) -> Result<(), CommandError> {
    let shown = man.dir.display();
    fs::create_dir_all(&man.dir).map_err(failed(format!("cannot create {shown}")))?;
    let pages = cli::man_pages().map_err(failed("cannot write the man pages".to_owned()))?;
    for (name, roff) in &pages {
        write(&man.dir.join(name), roff)?;
    }
    print(&format!("{} man pages are in {shown}\n", pages.len()))
}

fn write(path: &Path, content: &[u8]) -> Result<(), CommandError> {
    fs::write(path, content).map_err(failed(format!("cannot write {}", path.display())))
}

fn failed(what: String) -> impl FnOnce(io::Error) -> CommandError {
    move |source| CommandError::Io { what, source }
}
