//! The configuration file: TOML in, every problem at once or a checked [`Config`] out.

mod foreign;
mod generate;
mod identity;
mod keys;
mod model;
mod names;
mod problem;
mod reference;
mod replicate;
mod resource;
mod scope;
mod secret;
mod topology;
mod values;

use std::{cell::RefCell, path::Path, str};

use toml::de::DeTable;

pub use generate::{DemoPorts, SingleError};
pub use identity::Identity;
pub use model::{
    Address, Advertise, Allow, Chap, Cluster, Config, Connection, DiskOptions, Export, NetOptions, Node,
    OnIoError, Resource, ResourceOptions, Tls, Volume,
};
pub use problem::{Problem, Problems, Severity};
pub use reference::reference;
pub use secret::{Secret, SecretError, differ};

use scope::Scope;

/// A configuration that can be run, and what may not have been meant by it.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The configuration.
    pub config: Config,
    /// Its warnings. None of them is an error.
    pub warnings: Problems,
}

impl Config {
    /// Reads and checks the content of a file. `file` is its path: it names the file in problems, and relative paths
    /// are taken from its directory.
    ///
    /// # Errors
    /// Every problem of the file, warnings among them, where at least one is an error.
    pub fn parse(file: &Path, content: &[u8]) -> Result<Checked, Problems> {
        let shown = file.display().to_string();
        let source = match str::from_utf8(content) {
            Ok(source) => source,
            Err(error) => return Err(not_text(&shown, content, error.valid_up_to())),
        };
        let mut problems = Problems::new(&shown, source);
        if content.len() > FILE_MAX {
            problems.error(&(0..0), format!("the file has {} bytes", content.len()), "keep it below 1MiB");
            return Err(problems);
        }
        let (document, faults) = DeTable::parse_recoverable(source);
        if !faults.is_empty() {
            for span in names::secrets(source) {
                problems.blot_out(&span);
            }
        }
        for fault in &faults {
            syntax(&mut problems, fault, source);
        }
        let problems = RefCell::new(problems);
        let config = if faults.is_empty() {
            let root = Scope::open(&keys::ROOT, document.get_ref(), 0..0, &problems);
            read(&root, file.parent().unwrap_or(Path::new("")))
        } else {
            None
        };
        let mut problems = problems.into_inner();
        problems.sort();
        match config {
            Some(config) if !problems.has_errors() => Ok(Checked { config, warnings: problems }),
            _ => Err(problems),
        }
    }
}

/// The configuration that a file describes, or `None` where problems leave too little of it.
fn read(root: &Scope<'_>, base: &Path) -> Option<Config> {
    let cluster = topology::cluster(root, base);
    let (nodes, ids) = topology::nodes(root, base);
    let resources = resource::resources(root, base, &nodes, &ids);
    Some(Config { cluster: cluster?, nodes, resources })
}

/// Notes what is not TOML.
fn syntax(problems: &mut Problems, fault: &toml::de::Error, source: &str) {
    let end = source.len();
    let span = fault.span().unwrap_or(end..end);
    problems.error(
        &span,
        format!("this is not TOML: {}", fault.message()),
        "see https://toml.io for the form",
    );
}

fn not_text(file: &str, content: &[u8], valid: usize) -> Problems {
    let source = String::from_utf8_lossy(content);
    let mut problems = Problems::new(file, &source);
    problems.error(
        &(valid..valid + '\u{fffd}'.len_utf8()),
        "this is not UTF-8",
        "write the file as UTF-8 text",
    );
    problems
}

/// In bytes; far more than 32 nodes and hundreds of resources take.
const FILE_MAX: usize = 1 << 20;
